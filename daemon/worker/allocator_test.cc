#include "daemon/worker/allocator.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

namespace regroup {
namespace {

constexpr size_t kBytes = 64 << 20;

// Touched, so that the pages are there.
void TakeAndFree() {
  void* volatile block = std::malloc(kBytes);
  std::memset(block, 1, kBytes);
  std::free(block);
}

// This test links jemalloc, as regroup-worker does.
TEST(AllocatorTest, FreedMemory_IsHeldUntilReleased) {
  HoldLargeBlocks();
  ReleaseFreedMemory();
  const int64_t before = FreedBytesHeld();
  TakeAndFree();
  EXPECT_GE(FreedBytesHeld(), before + static_cast<int64_t>(kBytes) / 2);
  ReleaseFreedMemory();
  EXPECT_LT(FreedBytesHeld(), static_cast<int64_t>(kBytes) / 2);
}

}  // namespace
}  // namespace regroup

extern "C" const char* malloc_conf;
const char* malloc_conf = "narenas:1,oversize_threshold:0,dirty_decay_ms:600000";
