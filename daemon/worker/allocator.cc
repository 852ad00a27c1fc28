#include "daemon/worker/allocator.h"

#include <jemalloc/jemalloc.h>
#include <malloc.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"

// Null in a program that does not link jemalloc.
#pragma weak mallctl

namespace regroup {
namespace {

// jemalloc(3): "arena.<i>.purge", "stats.arenas.<i>.pdirty".
std::string OfAllArenas(const char* before, const char* after) {
  return absl::StrCat(before, MALLCTL_ARENAS_ALL, after);
}

}  // namespace

void HoldLargeBlocks() {
  if (&mallctl == nullptr) return;
  // Of arena 0, which opt.oversize_threshold comes too late for (jemalloc 5.3: arena_init_huge).
  size_t everything = size_t{1} << 60;
  mallctl("arena.0.oversize_threshold", nullptr, nullptr, &everything, sizeof(everything));
}

void ReleaseFreedMemory() {
  if (&mallctl == nullptr) {
    malloc_trim(0);
    return;
  }
  mallctl(OfAllArenas("arena.", ".purge").c_str(), nullptr, nullptr, nullptr, 0);
}

int64_t FreedBytesHeld() {
  if (&mallctl == nullptr) return 0;
  uint64_t epoch = 1;  // statistics are those of the last epoch
  size_t size = sizeof(epoch);
  size_t pages = 0;
  size_t pages_size = sizeof(pages);
  if (mallctl("epoch", &epoch, &size, &epoch, size) != 0 ||
      mallctl(OfAllArenas("stats.arenas.", ".pdirty").c_str(), &pages, &pages_size, nullptr, 0) !=
          0) {
    return 0;
  }
  return static_cast<int64_t>(pages) * sysconf(_SC_PAGESIZE);
}

}  // namespace regroup
