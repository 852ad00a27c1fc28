# Sourced by the scripts that build: how Bazel is called here. Sets HOME if it is not, `bazel_jobs`, `bazel_cmd`.

if [[ -z ${HOME:-} ]]; then
  HOME=$(getent passwd "$(id -u)" | cut -d: -f6)
  export HOME=${HOME:-/tmp}
fi

# A compilation against libtorch takes up to 2 GB.
bazel_memory_gb=$(awk '/MemTotal/ {print int($2 / 1048576)}' /proc/meminfo)
bazel_jobs=$(nproc)
((bazel_jobs * 2 <= bazel_memory_gb)) || bazel_jobs=$((bazel_memory_gb >= 2 ? bazel_memory_gb / 2 : 1))

# bazel_cmd COMMAND ARGUMENTS...; REGROUP_OUTPUT_BASE=DIR keeps Bazel's files in DIR.
bazel_cmd() {
  local startup=()
  [[ -n ${REGROUP_OUTPUT_BASE:-} ]] && startup=(--output_base="$REGROUP_OUTPUT_BASE")
  bazel "${startup[@]}" "$@" </dev/null
}
