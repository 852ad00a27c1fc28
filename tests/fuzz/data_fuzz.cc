// The first byte chooses the kind of file, the second the length of a row.
#include <string>
#include <vector>

#include "engine/data/dataset.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  regroup::ModelLimits language;
  language.is_language_model = true;
  language.vocab_size = 257;
  language.max_positions = 64;
  regroup::ModelLimits mlp;
  mlp.in_features = 2;
  mlp.out_features = 1;
  static constexpr const char* kEndings[] = {".u16.bin", ".u32.bin", ".jsonl", ".jsonl"};
  const int kind = data[0] % 4;
  const bool is_mlp = kind == 2;
  const int64_t seq = is_mlp ? 0 : data[1] % 8;
  const regroup::MemoryFile input(data + 2, size - 2, kEndings[kind]);
  const auto rows = regroup::Dataset::Open(input.path(), seq, is_mlp ? mlp : language);
  if (!rows.ok()) return 0;
  regroup::Require((*rows)->rows() > 0, "a file that is accepted has rows");
  if (!(*rows)->Check(0, (*rows)->rows()).ok()) return 0;
  const std::vector<int64_t> first_and_last = {0, (*rows)->rows() - 1};
  regroup::Require((*rows)->CountTargets(first_and_last) >= 0, "targets are counted");
  regroup::Require((*rows)->Load(first_and_last).inputs.size(0) == 2, "rows are loaded");
  return 0;
}
