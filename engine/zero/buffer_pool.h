// Page-aligned CPU buffers that are reused from pass to pass.
#ifndef ENGINE_ZERO_BUFFER_POOL_H_
#define ENGINE_ZERO_BUFFER_POOL_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace regroup {

// Buffers of (nearly) equal size are interchangeable; other sizes are not mixed, so that one large
// unit (an embedding) does not make the buffers of all others large. One thread takes and gives
// back; bytes() may be read from any.
class BufferPool {
 public:
  BufferPool() = default;
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // A buffer of at least `bytes` bytes, not cleared. Owned by the pool, which outlives its use.
  // Throws std::bad_alloc.
  void* Take(int64_t bytes);
  void GiveBack(void* buffer, int64_t bytes);

  // All buffers, taken or not.
  int64_t bytes() const { return bytes_; }
  int64_t buffers() const { return static_cast<int64_t>(owned_.size()); }

 private:
  struct Free {
    void operator()(void* buffer) const;
  };
  std::vector<std::unique_ptr<void, Free>> owned_;
  std::map<int64_t, std::vector<void*>> idle_;  // by rounded size
  std::atomic<int64_t> bytes_{0};
};

}  // namespace regroup

#endif  // ENGINE_ZERO_BUFFER_POOL_H_
