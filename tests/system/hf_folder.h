// Model folders and data files for the tests: a small reader and writer of safetensors that shares
// nothing with the engine's.
#ifndef TESTS_SYSTEM_HF_FOLDER_H_
#define TESTS_SYSTEM_HF_FOLDER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace regroup::harness {

// A tensor as a file holds it.
struct RawTensor {
  std::string dtype = "F32";
  std::vector<int64_t> shape;
  std::string bytes;  // row major, little endian
};

bool operator==(const RawTensor& a, const RawTensor& b);
inline bool operator!=(const RawTensor& a, const RawTensor& b) { return !(a == b); }

using TensorMap = std::map<std::string, RawTensor>;

RawTensor FromFloats(const std::vector<int64_t>& shape, const std::vector<float>& values);
std::vector<float> ToFloats(const RawTensor& tensor);  // F32 and BF16

// The same values as BF16, rounded to nearest even.
TensorMap ToBf16(const TensorMap& tensors);

// The bytes of a file: 8 bytes of header length, the header, the tensors in the order of their
// names.
std::string EncodeSafetensors(const TensorMap& tensors);
// A file of any header and data, for what a reader must refuse.
std::string EncodeSafetensors(const std::string& header, const std::string& data);

// Fails the test if the file is not one that the format's own library would read.
TensorMap ReadSafetensors(const std::string& path);

// A small Llama-type decoder (119,232 parameters untied); sizes that divide by few rank counts.
struct SmallLlama {
  int64_t vocab = 257;
  int64_t hidden = 64;
  int64_t layers = 2;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t head_dim = 16;
  int64_t intermediate = 160;
  int64_t max_positions = 64;
  double eps = 1e-6;
  double rope_theta = 10000;
  bool tied = false;
};

nlohmann::json ConfigOf(const SmallLlama& model);

// Weights of normal(0, 0.02), norm weights of normal(1, 0.1), so that a norm that is left out
// shows.
TensorMap RandomWeights(const SmallLlama& model, uint32_t seed);

// Writes config.json and model.safetensors into `folder`, which is made.
void WriteModel(const std::string& folder, const nlohmann::json& config, const TensorMap& weights);

// As WriteModel of a small model's own config and random weights; returns the weights.
TensorMap WriteSmallLlama(const std::string& folder, const SmallLlama& model, uint32_t seed);

// `count` random ids below `vocab`, as a *.u16.bin file holds them.
std::vector<int64_t> RandomTokens(int64_t count, int64_t vocab, uint32_t seed);
void WriteTokens(const std::string& path,
                 const std::vector<int64_t>& tokens);  // .u16.bin or .u32.bin

// Rows of an mlp's .jsonl file.
struct MlpRow {
  std::vector<float> x;
  std::vector<float> y;
};
std::vector<MlpRow> RandomMlpRows(int64_t count, int64_t in, int64_t out, uint32_t seed);
void WriteMlpRows(const std::string& path, const std::vector<MlpRow>& rows);

}  // namespace regroup::harness

#endif  // TESTS_SYSTEM_HF_FOLDER_H_
