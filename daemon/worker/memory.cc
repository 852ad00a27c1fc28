#include "daemon/worker/memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/group/comm_status.h"
#include "engine/layout/shard.h"

namespace regroup {
namespace {

constexpr int64_t kGradientBytes = 4;  // gradients are reduced in fp32 whatever the weights are
constexpr int64_t kMomentBytes = 4;

}  // namespace

int64_t StateBytes(const ParamTable& table, const Layout& layout, int num_moments) {
  int64_t elements = 0;
  for (const Unit& unit : table.units()) {
    elements += layout.placement == Placement::kReplicate ? unit.numel
                                                          : ShardSize(unit.numel, layout.size());
  }
  return elements * (DTypeBytes(table.dtype()) + kMomentBytes * num_moments);
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

int64_t AvailableMemoryBytes() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  int64_t kilobytes = 0;
  std::string unit;
  while (file >> key >> kilobytes) {
    if (key == "MemAvailable:") return kilobytes * 1024;
    std::getline(file, unit);
  }
  return -1;
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
  return WithReason(
      absl::ResourceExhaustedError(absl::StrCat(what, " needs ", needed, " bytes of memory; ",
                                                available, " are available on this machine")),
      "MEMORY");
}

}  // namespace regroup
