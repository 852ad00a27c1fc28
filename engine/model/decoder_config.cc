#include "engine/model/decoder_config.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace regroup {
namespace {

using nlohmann::json;

// Far above any model that exists, and small enough that products of them fit into 63 bits.
constexpr int64_t kMaxVocab = 16 << 20;
constexpr int64_t kMaxHidden = 1 << 18;
constexpr int64_t kMaxIntermediate = 1 << 20;
constexpr int64_t kMaxLayers = 10000;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 4096;
constexpr int64_t kMaxPositions = 16 << 20;
// Its powers are finite in fp32.
constexpr double kMinTheta = 1e-6;
constexpr double kMaxTheta = 1e15;

// Where the families' defaults differ.
struct Family {
  bool qkv_bias = false;  // always, whatever attention_bias says
  bool reads_attention_bias = false;
  bool qk_norm = false;
  int64_t max_positions = 0;
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = 0;  // 0: hidden_size / num_attention_heads
  int64_t eos = -1;      // -1: none
};

Family FamilyOf(const std::string& model_type) {
  Family family;
  if (model_type == "llama") {
    family.reads_attention_bias = true;
    family.max_positions = 2048;
    family.eos = 2;
    return family;
  }
  family.max_positions = 32768;
  family.kv_heads = 32;
  if (model_type == "qwen2") {
    family.qkv_bias = true;
  } else {
    family.reads_attention_bias = true;
    family.qk_norm = true;
    family.head_dim = 128;
  }
  return family;
}

std::vector<int64_t> ReadEos(const ConfigFile& config, int64_t absent, int64_t vocab_size,
                             ConfigReader* reader) {
  const auto it = config.fields.find("eos_token_id");
  if (it == config.fields.end()) {
    return absent >= 0 && absent < vocab_size ? std::vector<int64_t>{absent}
                                              : std::vector<int64_t>{};
  }
  std::vector<int64_t> tokens;
  if (it->is_null()) return tokens;
  const json list = it->is_array() ? *it : json::array({*it});
  for (const json& value : list) {
    int64_t token = 0;
    if (list.size() > 1024 || !ReadInteger(value, 0, vocab_size - 1, &token)) {
      reader->Invalid(
          "eos_token_id", *it,
          absl::StrCat("a token or a list of at most 1024 tokens from 0 to ", vocab_size - 1));
      break;
    }
    tokens.push_back(token);
  }
  return tokens;
}

// The object that describes the rotation: rope_scaling (transformers 4) or rope_parameters
// (transformers 5), the first if both are there.
class RopeReader {
 public:
  RopeReader(const char* field, const json& rope, ConfigReader* reader)
      : field_(field), rope_(rope), reader_(*reader) {}

  void Read(int64_t max_positions, RopeConfig* config) {
    const json* theta = Find("rope_theta");
    if (theta != nullptr) {
      config->theta = Number("rope_theta", kMinTheta, kMaxTheta);
    }
    const json* rotated = Find("partial_rotary_factor");
    if (rotated != nullptr && (!rotated->is_number() || rotated->get<double>() != 1)) {
      reader_.NotAvailable(Name("partial_rotary_factor"), *rotated, "1");
    }
    const char* key = Find("rope_type") != nullptr ? "rope_type" : "type";
    const json* type = Find(key);
    if (type != nullptr && *type == "llama3") {
      config->llama3 = ReadLlama3(max_positions);
    } else if (type != nullptr && *type != "default") {
      reader_.NotAvailable(Name(key), *type, "\"default\", \"llama3\"");
    }
    for (const auto& [name, value] : rope_.items()) {
      if (value.is_structured()) {
        reader_.NotAvailable(Name(name), value, "one object for all layers");
      }
    }
  }

 private:
  Llama3Scaling ReadLlama3(int64_t max_positions) {
    Llama3Scaling scaling;
    scaling.factor = Number("factor", 1, 1e9);
    scaling.low_freq_factor = Number("low_freq_factor", 1e-6, 1e9);
    scaling.high_freq_factor = Number("high_freq_factor", 1e-6, 1e9);
    if (reader_.status().ok() && scaling.high_freq_factor <= scaling.low_freq_factor) {
      reader_.Invalid(Name("high_freq_factor"), *Find("high_freq_factor"),
                      absl::StrFormat("above low_freq_factor = %g", scaling.low_freq_factor));
    }
    // A field of the whole config goes before the rope's own, as in transformers.
    constexpr char kOriginal[] = "original_max_position_embeddings";
    const json* original = reader_.Find(kOriginal);
    const std::string name = original != nullptr ? kOriginal : Name(kOriginal);
    if (original == nullptr) original = Find(kOriginal);
    scaling.original_max_positions = max_positions;
    if (original != nullptr &&
        !ReadInteger(*original, 1, kMaxPositions, &scaling.original_max_positions)) {
      reader_.Invalid(name, *original, absl::StrCat("an integer from 1 to ", kMaxPositions));
    }
    return scaling;
  }

  double Number(const char* key, double min, double max) {
    const std::string allowed = absl::StrFormat("a number from %g to %g", min, max);
    const json* value = Find(key);
    if (value == nullptr) {
      reader_.Missing(Name(key), allowed);
    } else if (!value->is_number() ||
               !(value->get<double>() >= min && value->get<double>() <= max)) {
      reader_.Invalid(Name(key), *value, allowed);
    }
    return reader_.status().ok() ? value->get<double>() : min;
  }

  const json* Find(const char* key) const {
    const auto it = rope_.find(key);
    return it == rope_.end() || it->is_null() ? nullptr : &*it;
  }

  std::string Name(const std::string& key) const { return absl::StrCat(field_, ".", key); }

  const char* field_;
  const json& rope_;
  ConfigReader& reader_;
};

void ReadRope(ConfigReader* reader, int64_t max_positions, RopeConfig* config) {
  config->theta = reader->Number("rope_theta", kMinTheta, kMaxTheta, 10000.0);
  const double rotated = reader->Number("partial_rotary_factor", 0, 1, 1.0);
  if (rotated != 1) reader->NotAvailable("partial_rotary_factor", rotated, "1");
  for (const char* field : {"rope_scaling", "rope_parameters"}) {
    const json* rope = reader->Find(field);
    if (rope == nullptr) continue;
    if (!rope->is_object()) {
      reader->Invalid(field, *rope, "an object or null");
    } else if (!rope->empty()) {
      RopeReader(field, *rope, reader).Read(max_positions, config);
      return;
    }
  }
}

// Options that change what is computed, in ways that Decoder does not follow.
void RefuseOptions(ConfigReader* reader, int64_t num_layers) {
  if (reader->Boolean("mlp_bias", false)) reader->NotAvailable("mlp_bias", true, "false");
  if (reader->Boolean("use_sliding_window", false)) {
    reader->NotAvailable("use_sliding_window", true, "false");
  }
  const json* types = reader->Find("layer_types");
  if (types != nullptr) {
    if (!types->is_array() || static_cast<int64_t>(types->size()) != num_layers) {
      reader->Invalid("layer_types", *types,
                      absl::StrCat("a list of num_hidden_layers = ", num_layers, " names"));
    } else {
      for (const json& type : *types) {
        if (type != "full_attention") {
          reader->NotAvailable("layer_types", type, "\"full_attention\" in each layer");
        }
      }
    }
  }
  const json* activation = reader->Find("hidden_act");
  if (activation != nullptr && *activation != "silu") {
    reader->NotAvailable("hidden_act", *activation, "\"silu\"");
  }
  const double dropout = reader->Number("attention_dropout", 0, 1, 0.0);
  if (dropout != 0) reader->NotAvailable("attention_dropout", dropout, "0");
  const json* quantization = reader->Find("quantization_config");
  if (quantization != nullptr) {
    reader->NotAvailable("quantization_config", *quantization, "none");
  }
}

}  // namespace

absl::StatusOr<DecoderConfig> ParseDecoderConfig(const ConfigFile& file) {
  const Family family = FamilyOf(file.model_type);
  ConfigReader reader(file);
  DecoderConfig config;
  config.vocab_size = reader.Integer("vocab_size", 1, kMaxVocab, std::nullopt);
  config.hidden_size = reader.Integer("hidden_size", 1, kMaxHidden, std::nullopt);
  config.intermediate_size = reader.Integer("intermediate_size", 1, kMaxIntermediate, std::nullopt);
  config.num_layers = reader.Integer("num_hidden_layers", 1, kMaxLayers, std::nullopt);
  config.num_heads = reader.Integer("num_attention_heads", 1, kMaxHeads, std::nullopt);
  // null means something else than nothing: as many as heads.
  const bool derived = family.kv_heads == 0 || file.fields.contains("num_key_value_heads");
  config.num_kv_heads = reader.Integer("num_key_value_heads", 1, kMaxHeads,
                                       derived ? config.num_heads : family.kv_heads);
  config.max_positions =
      reader.Integer("max_position_embeddings", 1, kMaxPositions, family.max_positions);
  config.rms_norm_eps = reader.Number("rms_norm_eps", 0, 1, 1e-6);
  config.initializer_range = reader.Number("initializer_range", 0, 100, 0.02);
  config.tie_word_embeddings = reader.Boolean("tie_word_embeddings", false);
  if (config.num_heads % config.num_kv_heads != 0) {
    reader.Invalid("num_key_value_heads", config.num_kv_heads,
                   absl::StrCat("a divisor of num_attention_heads = ", config.num_heads));
  }
  if (family.head_dim == 0 && reader.Find("head_dim") == nullptr &&
      config.hidden_size % config.num_heads != 0) {
    reader.Invalid("hidden_size", config.hidden_size,
                   absl::StrCat("a multiple of num_attention_heads = ", config.num_heads,
                                ", or head_dim be given"));
  }
  config.head_dim = reader.Integer(
      "head_dim", 1, kMaxHeadDim,
      family.head_dim != 0 ? family.head_dim : config.hidden_size / config.num_heads);
  if (config.head_dim % 2 != 0 || config.head_dim < 1 || config.head_dim > kMaxHeadDim) {
    reader.Invalid("head_dim", config.head_dim, absl::StrCat("even, from 2 to ", kMaxHeadDim));
  }
  const bool all_biases = family.reads_attention_bias && reader.Boolean("attention_bias", false);
  config.qkv_bias = family.qkv_bias || all_biases;
  config.output_bias = all_biases;
  config.qk_norm = family.qk_norm;
  RefuseOptions(&reader, config.num_layers);
  ReadRope(&reader, config.max_positions, &config.rope);
  config.eos_tokens = ReadEos(file, family.eos, config.vocab_size, &reader);
  if (!reader.status().ok()) return reader.status();
  return config;
}

}  // namespace regroup
