#!/usr/bin/env bash
# Checks the formatting of all C++ files, and runs clang-tidy on the layers without torch.
#
#   bash tests/lint.sh [--full] [--failures=FILE]
#
# clang-tidy reads the generated protocol headers, so `bazel build //proto/...` comes first. A file that
# passed is not looked at again until it, a header of this project that it includes, or the configuration
# changes; --full forgets that, also looks at tests, and adds the path-sensitive analyzer, which takes as
# long as all other checks together. FILE gets one line for each file with problems.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

full=
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=$scratch/failures
for argument in "$@"; do
  case $argument in
    --full) full=1 ;;
    --failures=*) failures=${argument#*=} ;;
    *) echo "usage: bash tests/lint.sh [--full] [--failures=FILE]" >&2; exit 2 ;;
  esac
done
: >"$failures"
cores=$(nproc)

sources() {  # C++ files of the given folders: tracked ones, and new ones that git does not ignore
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -z -co --exclude-standard -- "$@"
  else
    find -L "$@" -name 'bazel-*' -prune -o -type f -print0
  fi | grep -zE '\.(cc|h)$' | sort -z | while IFS= read -r -d '' file; do
    [[ -f $file ]] && printf '%s\0' "$file"
  done
}

export failures
format_one() {
  clang-format --dry-run -Werror "$1" 2>/dev/null && return
  echo "$1: not formatted: clang-format -i $1" >&2
  echo "format $1" >>"$failures"
}
export -f format_one
sources client daemon engine examples proto tests | xargs -0 -r -n 1 -P "$cores" bash -c 'format_one "$1"' _
echo "lint: $(sources client daemon engine examples proto tests | tr -cd '\0' | wc -c) files formatted as .clang-format says, but for $(grep -c ^format "$failures" || true)"

flags=(-std=c++17 -I. -Ibazel-bin/proto -DSPDLOG_COMPILED_LIB -DSPDLOG_FMT_EXTERNAL)
# Generated code is not ours to tidy.
tidy_flags=(-std=c++17 -I. -isystem bazel-bin/proto -DSPDLOG_COMPILED_LIB -DSPDLOG_FMT_EXTERNAL)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/regroup/tidy
mkdir -p "$cache"
find "$cache" -type f -mtime +60 -delete
checks=--checks=-clang-analyzer-*
[[ $full ]] && checks=--checks=
export checks cache full flags_line="${flags[*]}" tidy_flags_line="${tidy_flags[*]}"

tidy_one() {
  local file=$1 key inputs
  # The file and the headers of this project under it, generated ones included.
  inputs=$(g++ $flags_line -MM "$file" 2>/dev/null | tr -d '\\' | cut -d: -f2-) || inputs=$file
  key=$({ clang-tidy --version; echo "$tidy_flags_line $file"; cat .clang-tidy $inputs; } | sha256sum | cut -c1-64)
  [[ -z $full && -e $cache/$key ]] && return
  if output=$(clang-tidy --quiet "$checks" "$file" -- $tidy_flags_line 2>&1); then
    touch "$cache/$key"
  else
    printf '%s\n' "$output" | grep -v -E '^[0-9]+ warnings? (generated|treated)|^Suppressed|^Use -header-filter' >&2
    echo "tidy $file" >>"$failures"
  fi
  printf 'x' >&3
}
export -f tidy_one
looked_at=$scratch/looked_at
: >"$looked_at"
sources engine/layout proto daemon/node daemon/control client examples | grep -zE '\.cc$' |
  { if [[ $full ]]; then cat; else grep -zvE '_test\.cc$'; fi; } |
  xargs -0 -r -n 1 -P "$cores" bash -c 'tidy_one "$1" 3>>"$0"' "$looked_at"
echo "lint: clang-tidy looked at $(wc -c <"$looked_at") files that are new or changed; problems in $(grep -c ^tidy "$failures" || true)"
[[ ! -s $failures ]]
