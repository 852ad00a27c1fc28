#include <algorithm>
#include <string>

#include "engine/model/safetensors.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const regroup::MemoryFile input(data, size, "");
  const auto file = regroup::SafetensorsFile::Open(input.path());
  if (!file.ok()) return 0;
  for (const regroup::TensorEntry& tensor : (*file)->tensors()) {
    const int64_t bytes = tensor.end - tensor.begin;
    regroup::Require(bytes >= 0 && bytes <= static_cast<int64_t>(size), "it lies in the file");
    std::string content(static_cast<size_t>(bytes), '\0');
    regroup::Require((*file)->Read(tensor, 0, bytes, content.data()).ok(), "it can be read");
  }
  return 0;
}
