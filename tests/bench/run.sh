#!/usr/bin/env bash
# Prints every table of docs/benchmarks.md: Regroup beside its peers and the limits, measured in turn.
#
#   bash tests/bench/run.sh [--rounds=N] [--only=steps|moves|latency]
#
# Takes what deploy/install.sh installs and, the first time, Python packages of several GB
# (tests/pylib/venv.sh). Takes a quiet machine and about 12 GB of memory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage="usage: bash tests/bench/run.sh [--rounds=N] [--only=steps|moves|latency]"
for argument in "$@"; do
  [[ $argument == --help ]] && echo "$usage" && exit
  # Before the download.
  [[ $argument =~ ^--(rounds=[1-9][0-9]{0,3}|only=(steps|moves|latency))$ ]] || { echo "$usage" >&2; exit 2; }
done

. deploy/bazel_env.sh
. tests/pylib/venv.sh
peers_venv
bazel_cmd build --jobs="$bazel_jobs" --color=no --curses=no --noshow_progress --show_result=0 \
  --ui_event_filters=-info //daemon:regroupd //daemon:regroup-worker //client:regroupctl //tests/bench:latency
bin=$(bazel_cmd info bazel-bin 2>/dev/null)
PYTHONPATH=tests/pylib:tests/bench exec "$python" tests/bench/bench.py --bin="$bin" "$@"
