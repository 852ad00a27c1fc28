#include "client/prompts.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const regroup::MemoryFile input(data, size, "");
  const auto prompts = regroup::ReadPrompts(input.path());
  if (!prompts.ok()) return 0;
  regroup::Require(!prompts->empty(), "a file that is accepted has a prompt");
  for (const std::vector<int32_t>& prompt : *prompts) {
    regroup::Require(!prompt.empty(), "no prompt is empty");
    for (const int32_t token : prompt) regroup::Require(token >= 0, "tokens are 0 or above");
  }
  return 0;
}
