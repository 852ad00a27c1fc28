#include "tests/system/hf_folder.h"

#include <gtest/gtest.h>
#include <string.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/system/process.h"

namespace regroup::harness {
namespace {

using nlohmann::json;

std::string LittleEndian(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

int64_t Elements(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (int64_t size : shape) elements *= size;
  return elements;
}

int64_t BytesOf(const std::string& dtype) {
  if (dtype == "F32") return 4;
  if (dtype == "BF16" || dtype == "F16") return 2;
  ADD_FAILURE() << "dtype " << dtype;
  return 0;
}

RawTensor RandomTensor(const std::vector<int64_t>& shape, float mean, float deviation,
                       std::mt19937& generator) {
  std::normal_distribution<float> distribution(mean, deviation);
  std::vector<float> values(Elements(shape));
  for (float& value : values) value = distribution(generator);
  return FromFloats(shape, values);
}

}  // namespace

bool operator==(const RawTensor& a, const RawTensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.bytes == b.bytes;
}

RawTensor FromFloats(const std::vector<int64_t>& shape, const std::vector<float>& values) {
  RawTensor tensor;
  tensor.shape = shape;
  tensor.bytes.resize(values.size() * sizeof(float));
  memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

std::vector<float> ToFloats(const RawTensor& tensor) {
  if (tensor.dtype == "BF16") {
    std::vector<float> values(tensor.bytes.size() / sizeof(uint16_t));
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t high = 0;
      memcpy(&high, tensor.bytes.data() + i * sizeof(high), sizeof(high));
      const uint32_t bits = uint32_t{high} << 16;
      memcpy(&values[i], &bits, sizeof(bits));
    }
    return values;
  }
  EXPECT_EQ(tensor.dtype, "F32");
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  memcpy(values.data(), tensor.bytes.data(), values.size() * sizeof(float));
  return values;
}

TensorMap ToBf16(const TensorMap& tensors) {
  TensorMap rounded;
  for (const auto& [name, tensor] : tensors) {
    RawTensor& out = rounded[name];
    out.dtype = "BF16";
    out.shape = tensor.shape;
    for (const float value : ToFloats(tensor)) {
      uint32_t bits = 0;
      memcpy(&bits, &value, sizeof(bits));
      out.bytes += LittleEndian((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, 2);
    }
  }
  return rounded;
}

std::string EncodeSafetensors(const std::string& header, const std::string& data) {
  return absl::StrCat(LittleEndian(header.size(), 8), header, data);
}

std::string EncodeSafetensors(const TensorMap& tensors) {
  json header = json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return EncodeSafetensors(text, data);
}

TensorMap ReadSafetensors(const std::string& path) {
  TensorMap tensors;
  const std::string file = ReadFile(path);
  uint64_t header_size = 0;
  if (file.size() < 8) {
    ADD_FAILURE() << path << " has " << file.size() << " bytes";
    return tensors;
  }
  memcpy(&header_size, file.data(), 8);
  if (header_size > file.size() - 8) {
    ADD_FAILURE() << path << ": header of " << header_size << " bytes";
    return tensors;
  }
  const std::string data = file.substr(8 + header_size);
  const json header = json::parse(file.substr(8, header_size), nullptr, false);
  if (!header.is_object()) {
    ADD_FAILURE() << path << ": the header is not a JSON object";
    return tensors;
  }
  std::vector<std::pair<uint64_t, uint64_t>> intervals;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    RawTensor tensor;
    tensor.dtype = entry.at("dtype").get<std::string>();
    tensor.shape = entry.at("shape").get<std::vector<int64_t>>();
    const auto offsets = entry.at("data_offsets").get<std::vector<uint64_t>>();
    EXPECT_EQ(offsets.size(), 2u) << name;
    EXPECT_LE(offsets[1], data.size()) << name;
    tensor.bytes = data.substr(offsets[0], offsets[1] - offsets[0]);
    EXPECT_EQ(static_cast<int64_t>(tensor.bytes.size()),
              Elements(tensor.shape) * BytesOf(tensor.dtype))
        << name;
    intervals.emplace_back(offsets[0], offsets[1]);
    tensors[name] = std::move(tensor);
  }
  // The format's library wants the tensors to fill the data without overlap or hole.
  std::sort(intervals.begin(), intervals.end());
  uint64_t end = 0;
  for (const auto& interval : intervals) {
    EXPECT_EQ(interval.first, end) << path;
    end = interval.second;
  }
  EXPECT_EQ(end, data.size()) << path;
  return tensors;
}

json ConfigOf(const SmallLlama& model) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", model.vocab},
          {"hidden_size", model.hidden},
          {"num_hidden_layers", model.layers},
          {"num_attention_heads", model.heads},
          {"num_key_value_heads", model.kv_heads},
          {"head_dim", model.head_dim},
          {"intermediate_size", model.intermediate},
          {"max_position_embeddings", model.max_positions},
          {"rms_norm_eps", model.eps},
          {"rope_theta", model.rope_theta},
          {"rope_scaling", nullptr},
          {"hidden_act", "silu"},
          {"initializer_range", 0.02},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"tie_word_embeddings", model.tied},
          {"bos_token_id", 1},
          {"eos_token_id", 2},
          {"torch_dtype", "float32"}};
}

TensorMap RandomWeights(const SmallLlama& model, uint32_t seed) {
  std::mt19937 generator(seed);
  TensorMap weights;
  const auto matrix = [&](const std::string& name, int64_t rows, int64_t columns) {
    weights[name] = RandomTensor({rows, columns}, 0, 0.02F, generator);
  };
  const auto norm = [&](const std::string& name) {
    weights[name] = RandomTensor({model.hidden}, 1, 0.1F, generator);
  };
  matrix("model.embed_tokens.weight", model.vocab, model.hidden);
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    norm(prefix + "input_layernorm.weight");
    matrix(prefix + "self_attn.q_proj.weight", model.heads * model.head_dim, model.hidden);
    matrix(prefix + "self_attn.k_proj.weight", model.kv_heads * model.head_dim, model.hidden);
    matrix(prefix + "self_attn.v_proj.weight", model.kv_heads * model.head_dim, model.hidden);
    matrix(prefix + "self_attn.o_proj.weight", model.hidden, model.heads * model.head_dim);
    norm(prefix + "post_attention_layernorm.weight");
    matrix(prefix + "mlp.gate_proj.weight", model.intermediate, model.hidden);
    matrix(prefix + "mlp.up_proj.weight", model.intermediate, model.hidden);
    matrix(prefix + "mlp.down_proj.weight", model.hidden, model.intermediate);
  }
  norm("model.norm.weight");
  if (!model.tied) matrix("lm_head.weight", model.vocab, model.hidden);
  return weights;
}

void WriteModel(const std::string& folder, const json& config, const TensorMap& weights) {
  std::filesystem::create_directories(folder);
  WriteFile(folder + "/config.json", config.dump(2));
  WriteFile(folder + "/model.safetensors", EncodeSafetensors(weights));
}

TensorMap WriteSmallLlama(const std::string& folder, const SmallLlama& model, uint32_t seed) {
  TensorMap weights = RandomWeights(model, seed);
  WriteModel(folder, ConfigOf(model), weights);
  return weights;
}

std::vector<int64_t> RandomTokens(int64_t count, int64_t vocab, uint32_t seed) {
  std::mt19937 generator(seed);
  // Squaring a uniform number makes low ids frequent: there is something to learn.
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<int64_t> tokens(count);
  for (int64_t& token : tokens) {
    const double draw = uniform(generator);
    token = static_cast<int64_t>(draw * draw * static_cast<double>(vocab));
  }
  return tokens;
}

void WriteTokens(const std::string& path, const std::vector<int64_t>& tokens) {
  const int bytes = absl::EndsWith(path, ".u32.bin") ? 4 : 2;
  std::string contents;
  for (int64_t token : tokens) contents += LittleEndian(static_cast<uint64_t>(token), bytes);
  WriteFile(path, contents);
}

std::vector<MlpRow> RandomMlpRows(int64_t count, int64_t in, int64_t out, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution(0, 1);
  std::vector<MlpRow> rows(count);
  for (MlpRow& row : rows) {
    row.x.resize(in);
    row.y.resize(out);
    for (float& value : row.x) value = distribution(generator);
    for (float& value : row.y) value = distribution(generator);
  }
  return rows;
}

void WriteMlpRows(const std::string& path, const std::vector<MlpRow>& rows) {
  std::string contents;
  for (const MlpRow& row : rows)
    absl::StrAppend(&contents, json{{"x", row.x}, {"y", row.y}}.dump(), "\n");
  WriteFile(path, contents);
}

}  // namespace regroup::harness
