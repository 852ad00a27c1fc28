// Gives a fuzz target the inputs that are kept for it, and seeded mutations of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"

namespace regroup {
namespace {

constexpr int kMutations = 2000;
constexpr size_t kMaxSize = 4096;

std::vector<std::string> Corpus() {
  const std::filesystem::path folder = std::filesystem::path(std::getenv("TEST_SRCDIR")) /
                                       std::getenv("TEST_WORKSPACE") /
                                       std::getenv("REGROUP_CORPUS");
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> inputs;
  for (const std::filesystem::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return inputs;
}

void Give(const std::string& input) {
  // A copy of exactly its size: reading past it is an error that sanitizers see.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  EXPECT_EQ(LLVMFuzzerTestOneInput(bytes.data(), bytes.size()), 0);
}

TEST(Fuzz, KeptInputs_DoNotCrash) {
  const std::vector<std::string> inputs = Corpus();
  ASSERT_FALSE(inputs.empty());
  for (const std::string& input : inputs) Give(input);
  Give("");
}

TEST(Fuzz, MutationsOfKeptInputs_DoNotCrash) {
  const std::vector<std::string> inputs = Corpus();
  ASSERT_FALSE(inputs.empty());
  std::mt19937 random(1);
  const auto below = [&random](size_t bound) {
    return std::uniform_int_distribution<size_t>(0, bound - 1)(random);
  };
  for (int i = 0; i < kMutations; ++i) {
    std::string input = inputs[below(inputs.size())];
    for (size_t changes = 1 + below(4); changes > 0; --changes) {
      const size_t at = below(input.size() + 1);
      const std::string& other = inputs[below(inputs.size())];
      const size_t from = below(other.size() + 1);
      switch (below(5)) {
        case 0:
          input.insert(at, 1, static_cast<char>(below(256)));
          break;
        case 1:
          input.erase(at, 1 + below(8));
          break;
        case 2:
          if (at < input.size()) input[at] = static_cast<char>(below(256));
          break;
        case 3:
          input.insert(at, other.substr(from, 1 + below(32)));
          break;
        default:
          if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
      }
    }
    if (input.size() > kMaxSize) input.resize(kMaxSize);
    Give(input);
  }
}

}  // namespace
}  // namespace regroup
