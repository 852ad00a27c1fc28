#!/usr/bin/env bash
# From a fresh Debian 12 machine to a real model that is trained, moved between ranks and asked for text:
# installs, builds, makes a model and a text, runs the story, cleans up. A second run does only what is left.
#
#   bash deploy/quickstart.sh [--steps=N] [--keep]
#
#   --steps=N   train N steps before the move and half as many (at least 1) after it; default 4
#   --keep      leave the daemon and its engines running, and say how to use and stop it
#
# The model and the text go to $REGROUP_HOME, by default ~/.cache/regroup/quickstart (750 MB).
# REGROUP_OUTPUT_BASE=DIR keeps Bazel's files in DIR.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { echo "usage: bash deploy/quickstart.sh [--steps=N] [--keep]" >&2; exit 2; }
steps=4 keep=
while [[ $# -gt 0 ]]; do
  case $1 in
    --keep) keep=1 ;;
    --steps=*) steps=${1#*=} ;;
    --steps) [[ $# -gt 1 ]] || usage; steps=$2; shift ;;
    *) usage ;;
  esac
  shift
done
if [[ ! $steps =~ ^[1-9][0-9]{0,5}$ ]]; then
  echo "quickstart: --steps=$steps: must be a whole number, 1 to 999999" >&2
  exit 2
fi
. deploy/bazel_env.sh
data=${REGROUP_HOME:-$HOME/.cache/regroup/quickstart}
more=$((steps / 2 > 0 ? steps / 2 : 1))

title() { printf '\n== %s  [%d s]\n' "$*" "$SECONDS"; }

daemon=
work=$(mktemp -d)
clean_up() {
  local status=$?
  trap '' INT TERM
  if [[ -n $daemon ]] && kill -TERM "$daemon" 2>/dev/null; then
    for _ in $(seq 100); do kill -0 "$daemon" 2>/dev/null || break; sleep 0.1; done
    kill -KILL "$daemon" 2>/dev/null || true
  fi
  # Not after Ctrl-C and the like.
  [[ $status -eq 0 || $status -gt 128 || ! -s $work/log ]] || { echo "the end of the daemon's log:" >&2; tail -n 20 "$work/log" >&2; }
  rm -rf "$work"
  exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

title "Install"
bash deploy/install.sh

title "Build (the first time: a 530 MB download, then minutes of compiling)"
bazel_cmd build --jobs="$bazel_jobs" --color=no --curses=no --show_progress_rate_limit=20 --show_result=0 \
  --noshow_loading_progress --ui_event_filters=-info //daemon:regroupd //daemon:regroup-worker //client:regroupctl
bin=$(bazel_cmd info bazel-bin 2>/dev/null)
bazel_cmd shutdown  # its server would stay for hours, with the memory that training can use

title "A model and a text"
bash deploy/make_data.sh "$data"
data=$(cd "$data" && pwd)
tokens() { "$data/python/bin/python" deploy/text_tokens.py "$@"; }

title "One daemon, four ranks"
mkdir "$work/state"
echo "\$ regroupd --node=a --listen=127.0.0.1:0 --ranks=4 --data-root=$data"
# A session of its own: Ctrl-C here ends this script first, which then stops the daemon.
setsid "$bin/daemon/regroupd" --node=a --listen=127.0.0.1:0 --ranks=4 --data-root="$data" \
  --state-dir="$work/state" >"$work/out" 2>"$work/log" </dev/null &
daemon=$!
server=
for _ in $(seq 600); do
  server=$(sed -n 's/^listening on //p' "$work/out")
  [[ -n $server ]] && break
  kill -0 "$daemon" 2>/dev/null || { echo "quickstart: regroupd ended" >&2; exit 1; }
  sleep 0.1
done
[[ -n $server ]] || { echo "quickstart: regroupd was not ready within 60 s" >&2; exit 1; }
echo "listening on $server"

# Shows a command as one would type it, then runs it.
ctl() {
  echo
  echo "\$ regroupctl $*" | sed "s#$data#DATA#g"
  "$bin/client/regroupctl" --server="$server" "$@"
}

asked=("The secret of a good life is" "Mark Twain:" "chat: Give me one short piece of advice.")
tokens prompts "$data/smollm2" "$work/prompts.jsonl" "${asked[@]}"
ask() {
  echo
  echo "\$ regroupctl generate rollout --tokens-file=prompts.jsonl --max-tokens=32   (three prompts, as text)"
  "$bin/client/regroupctl" --server="$server" -o json generate rollout --tokens-file="$work/prompts.jsonl" \
    --max-tokens=32 >"$work/generated"
  tokens show "$data/smollm2" "${asked[@]}" <"$work/generated"
}

title "What SmolLM2 writes before training: an inference engine on rank 3"
ctl engine create rollout --ranks=3 --model="$data/smollm2" --role=infer
ask

title "A ZeRO-3 trainer on ranks 1 and 2 of the four; it learns from Debian's fortunes"
ctl engine create actor --ranks=1-2 --model="$data/smollm2" --optimizer=adamw --lr=5e-5
ctl train actor --data="$data/text.u16.bin" --steps="$steps" --batch=4 --seq=128

title "The trainer moves to ranks 0-2, in memory, with its Adam state, and goes on"
ctl engine relayout actor --ranks=0-2
ctl train actor --data="$data/text.u16.bin" --steps="$more" --batch=4 --seq=128

title "The inference engine gets the trained weights; the same prompts again"
ctl engine sync actor rollout
ask

title "Who holds what"
ctl status
ctl engine describe actor
ctl engine trace actor >"$work/trace"
head -n 14 "$work/trace"
[[ $(wc -l <"$work/trace") -le 14 ]] || echo "  ... $(($(wc -l <"$work/trace") - 14)) more lines"

if [[ $keep ]]; then
  title "Kept running"
  echo "  $bin/client/regroupctl --server=$server status"
  echo "  its state and log: $work"
  echo "  to stop it: kill $daemon && rm -rf $work"
  trap - EXIT
  exit 0
fi

title "Away with it"
ctl engine delete rollout
ctl engine delete actor
kill -TERM "$daemon"
wait "$daemon" || { echo "quickstart: regroupd ended with exit code $?" >&2; daemon=; exit 1; }
daemon=
title "Done: nothing is left running; $data stays for the next run"
