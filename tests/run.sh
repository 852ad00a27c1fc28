#!/usr/bin/env bash
# Installs, builds, lints and tests everything, and ends with "N passed, N failed" (test cases and lint).
#
#   bash tests/run.sh           what has to hold for each change
#   bash tests/run.sh --full    also the tests tagged "full" (minutes each), the linter from scratch, libFuzzer
#                               (tests/fuzz/run.sh) and the peers (tests/parity/run.sh, which downloads several GB)
#
# REGROUP_OUTPUT_BASE=DIR keeps Bazel's files in DIR.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

full=()
for argument in "$@"; do
  case $argument in
    --full) full=(--full) ;;
    *) echo "usage: bash tests/run.sh [--full]" >&2; exit 2 ;;
  esac
done

. deploy/bazel_env.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

say() { printf '[%4d s] %s\n' "$SECONDS" "$*"; }
say "installing what is missing"
install=--dev
[[ ${#full[@]} -eq 0 ]] || install=--full
bash deploy/install.sh "$install"

quiet=(--jobs="$bazel_jobs" --keep_going --color=no --curses=no --noshow_progress --show_result=0 --ui_event_filters=-info)
filter=()
[[ ${#full[@]} -eq 0 ]] && filter=(--test_tag_filters=-full --build_tag_filters=-full)

binaries=(//daemon:regroupd //daemon:regroup-worker //client:regroupctl)
say "building ${binaries[*]} (the first time it downloads the PyTorch wheel, 530 MB, and takes minutes)"
: >"$scratch/lint"
if ! bazel_cmd build "${quiet[@]}" "${binaries[@]}" //proto/... >"$scratch/build.log" 2>&1; then
  tail -n 60 "$scratch/build.log"
  echo "build ${binaries[*]}" >>"$scratch/lint"
fi

say "linting"
: >"$scratch/files"
bash tests/lint.sh "${full[@]}" --failures="$scratch/files" || [[ -s $scratch/files ]] || echo "lint: ended early" >"$scratch/files"
cat "$scratch/files" >>"$scratch/lint"

say "building and running the tests"
# Not //...: a bazel-* link of another output base would count as a package.
packages=(//client/... //daemon/... //engine/... //examples/... //proto/... //tests/...)
all="tests(set(${packages[*]}))"
query=$all
[[ ${#full[@]} -eq 0 ]] && query="$all except attr(tags, '\bfull\b', $all)"
bazel_cmd query --keep_going --noshow_progress "$query" >"$scratch/targets" 2>"$scratch/query.log" ||
  { cat "$scratch/query.log"; echo "the packages do not all load" >>"$scratch/lint"; }
bazel_cmd test "${quiet[@]}" "${filter[@]}" --local_test_jobs="$bazel_jobs" --test_output=summary \
  --build_event_json_file="$scratch/events.json" "${packages[@]}" >"$scratch/test.log" 2>&1 || true
# Compile errors; the logs of failed tests come from the count below.
grep -E -B2 -A12 '(error:|ERROR:)' "$scratch/test.log" | head -n 200 || true

results=()
if [[ ${#full[@]} -ne 0 ]]; then
  for suite in parity fuzz; do
    say "running tests/$suite/run.sh"
    results+=("$scratch/$suite.results")
    bash "tests/$suite/run.sh" --results="$scratch/$suite.results" >"$scratch/$suite.log" 2>&1 && continue
    tail -n 60 "$scratch/$suite.log"
    grep -qs "^failed " "$scratch/$suite.results" || echo "failed $suite: ended early" >>"$scratch/$suite.results"
  done
fi

say "counting"
python3 tests/count_results.py "$scratch/events.json" "$scratch/targets" "$scratch/lint" "${results[@]}"
