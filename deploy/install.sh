#!/usr/bin/env bash
# Installs the Debian 12 packages that building and running Regroup takes, and nothing that is there already.
#
#   bash deploy/install.sh          to build and run
#   bash deploy/install.sh --dev    to test as well: adds the formatter and the linter
#   bash deploy/install.sh --full   to fuzz as well: adds clang and libFuzzer
set -euo pipefail

packages=(
  # Bazel and the rule sets that it loads
  bazel-bootstrap bazel-rules-proto bazel-rules-java bazel-skylib bazel-platforms
  # compiler, and Python with pip for the PyTorch wheel and the quickstart's tokenizer
  g++ git ca-certificates python3 python3-pip python3-venv
  # libraries; docs/dependencies.md says what each is for
  libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev
  nlohmann-json3-dev libcli11-dev libspdlog-dev libfmt-dev libxxhash-dev libgloo-dev libsqlite3-dev libjemalloc-dev
  libgtest-dev libgmock-dev
  # the quickstart's English text
  fortunes
)
dev=(clang-format clang-tidy)
case $#${1:-} in
  0) ;;
  1--dev) packages+=("${dev[@]}") ;;
  1--full) packages+=("${dev[@]}" clang libclang-rt-14-dev) ;;
  *) echo "usage: bash deploy/install.sh [--dev|--full]" >&2; exit 2 ;;
esac

missing=()
declare -A installed=()
while read -r state name; do
  [[ $state == installed ]] && installed[$name]=1
done < <(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
for name in "${packages[@]}"; do
  [[ -n ${installed[$name]:-} ]] || missing+=("$name")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  echo "install: all ${#packages[@]} packages are there"
  exit 0
fi

release=$(. /etc/os-release && echo "${ID:-unknown} ${VERSION_ID:-}")
if [[ $release != "debian 12" ]]; then
  echo "install: made for Debian 12; this is $release, whose packages may be missing or of other versions" >&2
fi
as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "install: ${#missing[@]} packages are missing, and this is neither root nor is there sudo. As root, run:" >&2
    echo "  apt-get update && apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" \
    </dev/null >>"$log" 2>&1 && return
  echo "install: apt-get $1 failed; the end of what it said:" >&2
  tail -n 30 "$log" >&2
  exit 1
}
echo "install: ${#missing[@]} packages: ${missing[*]}"
apt update
apt install --no-install-recommends "${missing[@]}"
echo "install: done after ${SECONDS} s"
