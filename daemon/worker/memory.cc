#include "daemon/worker/memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "daemon/worker/allocator.h"
#include "engine/group/comm_status.h"
#include "engine/layout/human_text.h"
#include "engine/layout/shard.h"

namespace regroup {
namespace {

constexpr int64_t kGradientBytes = 4;  // gradients are reduced in fp32 whatever the weights are
constexpr int64_t kFp32Bytes = 4;

// The number that `path` starts with; -1 if there is none ("max" too).
int64_t NumberIn(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? value : -1;
}

// The value of `key` in a file of lines "key value", 0 if it is not there.
int64_t ValueIn(const std::string& path, absl::string_view key) {
  std::ifstream file(path);
  std::string name;
  int64_t value = 0;
  while (file >> name >> value) {
    if (name == key) return value;
  }
  return 0;
}

int64_t Smaller(int64_t a, int64_t b) { return a < 0 ? b : b < 0 ? a : std::min(a, b); }

// What one group leaves, -1 if it has no limit.
int64_t LeftIn(const std::string& folder, bool v2) {
  const int64_t limit =
      NumberIn(absl::StrCat(folder, v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  const int64_t used =
      NumberIn(absl::StrCat(folder, v2 ? "/memory.current" : "/memory.usage_in_bytes"));
  if (limit < 0 || used < 0) return -1;
  const int64_t cache =
      ValueIn(absl::StrCat(folder, "/memory.stat"), v2 ? "inactive_file" : "total_inactive_file");
  return std::max<int64_t>(limit - std::max<int64_t>(used - cache, 0), 0);
}

// A line of /proc/meminfo, -1 if it is not there.
int64_t MachineBytes(absl::string_view key) {
  std::ifstream file("/proc/meminfo");
  std::string found;
  int64_t kilobytes = 0;
  std::string unit;
  while (file >> found >> kilobytes) {
    if (found == key) return kilobytes * 1024;
    std::getline(file, unit);
  }
  return -1;
}

}  // namespace

int64_t StateBytes(const ParamTable& table, const Layout& layout, int fp32_tensors) {
  int64_t elements = 0;
  for (const Unit& unit : table.units()) {
    elements += layout.placement == Placement::kReplicate ? unit.numel
                                                          : ShardSize(unit.numel, layout.size());
  }
  return elements * (DTypeBytes(table.dtype()) + kFp32Bytes * fp32_tensors);
}

int TrainerTensors(const ParamTable& table, const OptimizerSpec& optimizer) {
  return optimizer.num_moments() + (NeedsMaster(table.dtype()) ? 1 : 0);
}

int64_t TrainerBufferBytes(const ParamTable& table, const Layout& layout) {
  int64_t shards = 0;
  int64_t largest = 0;
  for (const Unit& unit : table.units()) {
    const int64_t shard = ShardSize(unit.numel, layout.size());
    shards += shard;
    largest = std::max(largest, shard * layout.size());
  }
  return shards * kGradientBytes + largest * (2 * DTypeBytes(table.dtype()) + 3 * kGradientBytes);
}

int64_t StepBytes(const ParamTable& table, const Layout& layout, int64_t activations,
                  int64_t accumulate) {
  if (accumulate <= 1) return activations;
  int64_t largest = 0;
  for (const Unit& unit : table.units()) {
    largest = std::max(largest, ShardSize(unit.numel, layout.size()));
  }
  return activations + 2 * largest * kGradientBytes;
}

int64_t ControlGroupBytes(absl::string_view self, const std::string& mount) {
  int64_t left = -1;
  for (const absl::string_view line : absl::StrSplit(self, '\n')) {
    // hierarchy:controllers:path; v2 has no controllers.
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const bool v2 = parts[1].empty();
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    if (!v2 && std::find(controllers.begin(), controllers.end(), "memory") == controllers.end()) {
      continue;
    }
    const std::string root = v2 ? mount : absl::StrCat(mount, "/memory");
    // A container may see its own group as the root of the mount.
    for (absl::string_view path = parts[2];; path = path.substr(0, path.rfind('/'))) {
      if (path == "/") path = "";
      left = Smaller(left, LeftIn(absl::StrCat(root, path), v2));
      if (path.rfind('/') == absl::string_view::npos) break;
    }
  }
  return left;
}

int64_t AvailableMemoryBytes() {
  std::ifstream file("/proc/self/cgroup");
  std::stringstream self;
  self << file.rdbuf();
  const int64_t left =
      Smaller(MachineBytes("MemAvailable:"), ControlGroupBytes(self.str(), "/sys/fs/cgroup"));
  return left < 0 ? left : left + FreedBytesHeld();
}

int64_t AwaitAtLeast(int64_t needed, absl::Duration patience,
                     const std::function<int64_t()>& probe) {
  const absl::Time end = absl::Now() + patience;
  while (true) {
    const int64_t value = probe();
    if (value < 0 || value >= needed || absl::Now() >= end) return value;
    absl::SleepFor(absl::Milliseconds(50));
  }
}

int64_t AwaitMemoryBytes(int64_t needed) {
  const int64_t total = MachineBytes("MemTotal:");
  const bool never = total >= 0 && needed > total;
  return AwaitAtLeast(needed, never ? absl::ZeroDuration() : kFreedMemoryHeld + absl::Seconds(2),
                      AvailableMemoryBytes);
}

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  int64_t resident = 0;
  if (!(file >> pages >> resident)) return -1;
  return resident * sysconf(_SC_PAGESIZE);
}

absl::Status AdmitMemory(absl::string_view what, int64_t needed, int64_t available) {
  if (available < 0 || needed <= available) return absl::OkStatus();
  return WithReason(absl::ResourceExhaustedError(absl::StrCat(what, " needs ", HumanBytes(needed),
                                                              " of memory; ", HumanBytes(available),
                                                              " are available on this machine")),
                    "MEMORY");
}

}  // namespace regroup
