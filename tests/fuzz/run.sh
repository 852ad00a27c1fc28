#!/usr/bin/env bash
# Drives the fuzz targets with libFuzzer (clang, address and undefined-behaviour sanitizers).
#
#   bash tests/fuzz/run.sh [RUNS]            RUNS inputs for each target (1000000); fails at the first crash,
#                                            input that takes over 10 s, or allocation above 512 MB
#   bash tests/fuzz/run.sh --keep [RUNS]     and adds what covers new code to tests/fuzz/corpus/
#
# Takes Debian's clang and libclang-rt-14-dev beside what deploy/install.sh --dev installs.
# Ends with "N passed, N failed". A crash leaves its input in the folder that the last lines name.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

keep=
[[ ${1:-} == --keep ]] && { keep=1; shift; }
runs=${1:-1000000}
[[ $runs =~ ^[1-9][0-9]*$ && $# -le 1 ]] || { echo "usage: bash tests/fuzz/run.sh [--keep] [RUNS]" >&2; exit 2; }

. deploy/bazel_env.sh
targets=(rank_list_fuzz mlp_spec_fuzz config_fuzz safetensors_fuzz data_fuzz prompts_fuzz request_fuzz)
scratch=$(mktemp -d)
bazel_cmd build --config=fuzz --jobs="$bazel_jobs" --color=no --curses=no --noshow_progress --show_result=0 \
  "${targets[@]/#///tests/fuzz:}" >"$scratch/build.log" 2>&1 || { tail -n 60 "$scratch/build.log"; exit 1; }
bin=$(bazel_cmd info --config=fuzz bazel-bin 2>/dev/null)/tests/fuzz

fuzz_one() {
  local target=$1 found=$scratch/$1
  mkdir -p "$found"
  if "$bin/$target" -runs="$runs" -max_len=4096 -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=512 -seed=1 \
      -print_final_stats=1 -artifact_prefix="$found/crash-" "$found" "tests/fuzz/corpus/$target" \
      >"$scratch/$target.log" 2>&1; then
    echo "$target: $(grep -o 'number_of_executed_units: *[0-9]*' "$scratch/$target.log" | grep -o '[0-9]*$') inputs, peak $(grep -o 'peak_rss_mb: *[0-9]*' "$scratch/$target.log" | grep -o '[0-9]*$') MB"
    return
  fi
  tail -n 40 "$scratch/$target.log"
  echo "$target: FAILED; the input is $(ls "$found"/crash-* 2>/dev/null | head -n 1), the log $scratch/$target.log"
  return 1
}
export -f fuzz_one
export bin runs scratch

failed=0
printf '%s\0' "${targets[@]}" | xargs -0 -n 1 -P "$(nproc)" bash -c 'fuzz_one "$1" || touch "$scratch/failed-$1"' _
for target in "${targets[@]}"; do
  [[ -e $scratch/failed-$target ]] && failed=$((failed + 1))
  if [[ $keep && ! -e $scratch/failed-$target ]]; then
    # The fewest inputs that cover all that these two folders cover.
    "$bin/$target" -merge=1 "tests/fuzz/corpus/$target" "$scratch/$target" >/dev/null 2>&1
  fi
done
[[ $failed -eq 0 ]] && rm -rf "$scratch"
echo "$((${#targets[@]} - failed)) passed, $failed failed"
[[ $failed -eq 0 ]]
