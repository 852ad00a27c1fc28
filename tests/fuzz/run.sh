#!/usr/bin/env bash
# Drives the fuzz targets with libFuzzer (clang, address and undefined-behaviour sanitizers).
#
#   bash tests/fuzz/run.sh [RUNS]               RUNS inputs for each target (1000000); fails at the first crash,
#                                               input that takes over 10 s, or allocation above 512 MB
#   bash tests/fuzz/run.sh --keep [RUNS]        and adds what covers new code to tests/fuzz/corpus/
#   bash tests/fuzz/run.sh --results=FILE ...   and writes "passed NAME" or "failed NAME" lines to FILE
#
# Takes Debian's clang and libclang-rt-14-dev as deploy/install.sh --full installs.
# Ends with "N passed, N failed". A crash leaves its input in the folder that the last lines name.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

keep= runs=1000000 results=/dev/null
for argument in "$@"; do
  if [[ $argument == --keep ]]; then
    keep=1
  elif [[ $argument == --results=* ]]; then
    results=${argument#*=}
  elif [[ $argument =~ ^[1-9][0-9]*$ ]]; then
    runs=$argument
  else
    echo "usage: bash tests/fuzz/run.sh [--keep] [--results=FILE] [RUNS]" >&2
    exit 2
  fi
done

. deploy/bazel_env.sh
targets=(rank_list_fuzz mlp_spec_fuzz config_fuzz safetensors_fuzz data_fuzz prompts_fuzz request_fuzz)
scratch=$(mktemp -d)
: >"$results"
# Memory that was freed is kept poisoned for a while; of the default, 256 MB, the caches would see nothing.
export ASAN_OPTIONS=quarantine_size_mb=32:malloc_context_size=8
bazel_cmd build --config=fuzz --jobs="$bazel_jobs" --color=no --curses=no --noshow_progress --show_result=0 \
  "${targets[@]/#///tests/fuzz:}" >"$scratch/build.log" 2>&1 || {
    tail -n 60 "$scratch/build.log"
    printf 'failed %s\n' "${targets[@]/#/fuzz }" >>"$results"
    exit 1
  }
bin=$(bazel_cmd info --config=fuzz bazel-bin 2>/dev/null)/tests/fuzz

stat_of() { sed -n "s/^stat::$1: *//p" "$scratch/$2.log"; }
fuzz_one() {
  local target=$1 found=$scratch/$1 start=$SECONDS
  mkdir -p "$found"
  if "$bin/$target" -runs="$runs" -max_len=4096 -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=512 -seed=1 \
      -dict="tests/fuzz/dict/$target.dict" -print_final_stats=1 -artifact_prefix="$found/crash-" "$found" "tests/fuzz/corpus/$target" \
      >"$scratch/$target.log" 2>&1; then
    echo "$target: $(stat_of number_of_executed_units "$1") inputs in $((SECONDS - start)) s, peak $(stat_of peak_rss_mb "$1") MB"
    return
  fi
  tail -n 40 "$scratch/$target.log"
  echo "$target: FAILED; the input is $(ls "$found"/crash-* 2>/dev/null | head -n 1), the log $scratch/$target.log"
  return 1
}
export -f fuzz_one stat_of
export bin runs scratch

failed=0
printf '%s\0' "${targets[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'fuzz_one "$1" || touch "$scratch/failed-$1"' _
for target in "${targets[@]}"; do
  if [[ -e $scratch/failed-$target ]]; then
    failed=$((failed + 1))
    echo "failed fuzz $target" >>"$results"
  else
    echo "passed fuzz $target" >>"$results"
  fi
  if [[ $keep && ! -e $scratch/failed-$target ]]; then
    # The fewest inputs that cover all that these two folders cover.
    "$bin/$target" -merge=1 "tests/fuzz/corpus/$target" "$scratch/$target" >/dev/null 2>&1
  fi
done
[[ $failed -eq 0 ]] && rm -rf "$scratch"
echo "$((${#targets[@]} - failed)) passed, $failed failed"
[[ $failed -eq 0 ]]
