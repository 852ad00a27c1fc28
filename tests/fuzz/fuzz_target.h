// What every fuzz target defines.
#ifndef TESTS_FUZZ_FUZZ_TARGET_H_
#define TESTS_FUZZ_FUZZ_TARGET_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

// Gives `data` to a parser. Anything but a crash is fine, unless a Require fails. Returns 0.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace regroup {

// What has to hold of an input that was accepted, or of an error.
inline void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

}  // namespace regroup

#endif  // TESTS_FUZZ_FUZZ_TARGET_H_
