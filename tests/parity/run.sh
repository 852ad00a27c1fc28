#!/usr/bin/env bash
# Compares the real binaries with what nobody here wrote: transformers, torch.optim, FSDP2, DeepSpeed ZeRO-3.
#
#   bash tests/parity/run.sh [--results=FILE]     FILE gets a line "passed NAME" or "failed NAME" for each case
#
# Takes what deploy/install.sh installs, the first time Python packages of several GB (tests/pylib/venv.sh), and
# SmolLM2 (deploy/make_data.sh) in $REGROUP_HOME, by default ~/.cache/regroup/quickstart. Prints the differences,
# and ends with "N passed, N failed".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

results=
for argument in "$@"; do
  case $argument in
    --results=*) results=$(realpath -m "${argument#*=}") ;;
    *) echo "usage: bash tests/parity/run.sh [--results=FILE]" >&2; exit 2 ;;
  esac
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
results=${results:-$scratch/results}
# Counts as a failure unless everything is prepared.
echo "failed parity: preparation" >"$results"

. deploy/bazel_env.sh
. tests/pylib/venv.sh
peers_venv
data=${REGROUP_HOME:-$HOME/.cache/regroup/quickstart}
bash deploy/make_data.sh "$data"
bazel_cmd build --jobs="$bazel_jobs" --color=no --curses=no --noshow_progress --show_result=0 \
  --ui_event_filters=-info //daemon:regroupd //daemon:regroup-worker //client:regroupctl
bin=$(bazel_cmd info bazel-bin 2>/dev/null)

: >"$results"
export PYTHONPATH=tests/pylib:tests/bench HF_HUB_OFFLINE=1
failures() { grep -c '^failed ' "$results" || true; }
run() {
  local script=$1 before
  shift
  before=$(failures)
  echo "== $script  [$SECONDS s]"
  "$python" "tests/parity/$script.py" --bin="$bin" --results="$results" "$@" && return
  # One that ends outside its cases.
  [[ $(failures) -gt $before ]] || echo "failed $script: ended early" >>"$results"
}
run transformers_parity
run peers_parity
run smollm2_parity --data="$data"

failed=$(failures)
echo "$(grep -c '^passed ' "$results" || true) passed, $failed failed"
[[ $failed -eq 0 ]]
