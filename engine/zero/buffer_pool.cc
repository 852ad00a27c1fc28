#include "engine/zero/buffer_pool.h"

#include <cstdlib>
#include <new>

namespace regroup {
namespace {

constexpr int64_t kPage = 4096;

// To whole pages; of large buffers to the next of steps of a 256th to a 128th of their size, so
// that units of nearly equal size (an embedding, and a head with its norm) share theirs.
int64_t Rounded(int64_t bytes) {
  int64_t step = kPage;
  while (2 * step <= bytes / 128) step *= 2;
  if (step == kPage) return (bytes + kPage - 1) / kPage * kPage;
  return (bytes / step + 1) * step;
}

}  // namespace

void BufferPool::Free::operator()(void* buffer) const { std::free(buffer); }

void* BufferPool::Take(int64_t bytes) {
  const int64_t size = Rounded(bytes);
  std::vector<void*>& idle = idle_[size];
  if (!idle.empty()) {
    void* buffer = idle.back();
    idle.pop_back();
    return buffer;
  }
  void* buffer = std::aligned_alloc(kPage, size);
  if (buffer == nullptr) throw std::bad_alloc();
  owned_.emplace_back(buffer);
  bytes_ += size;
  return buffer;
}

void BufferPool::GiveBack(void* buffer, int64_t bytes) { idle_[Rounded(bytes)].push_back(buffer); }

}  // namespace regroup
