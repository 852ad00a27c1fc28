#!/usr/bin/env bash
# Prints every table of docs/benchmarks.md: Regroup beside its peers and the limits, measured in turn.
#
#   bash tests/bench/run.sh [--rounds=N] [--only=steps|moves|latency]
#
# Takes what deploy/install.sh installs and, the first time, Python packages of several GB (requirements.txt and
# DeepSpeed) into $XDG_CACHE_HOME/regroup/bench-venv. Takes a quiet machine and about 12 GB of memory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

. deploy/bazel_env.sh
venv=${XDG_CACHE_HOME:-$HOME/.cache}/regroup/bench-venv
if [[ ! -e $venv/done ]] || ! cmp -s tests/bench/requirements.txt "$venv/done"; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q -r tests/bench/requirements.txt
  # Built from source against the torch that is there; none of its compiled operators is used.
  DS_BUILD_OPS=0 "$venv/bin/pip" install -q --no-build-isolation deepspeed==0.19.8
  cp tests/bench/requirements.txt "$venv/done"
fi
bazel_cmd build --jobs="$bazel_jobs" --color=no --curses=no --noshow_progress --show_result=0 \
  --ui_event_filters=-info //daemon:regroupd //daemon:regroup-worker //client:regroupctl //tests/bench:latency
bin=$(bazel_cmd info bazel-bin 2>/dev/null)
PYTHONPATH=tests/bench exec "$venv/bin/python" tests/bench/bench.py --bin="$bin" "$@"
