// Files that cannot be used are refused at create or train, named, with what is wrong in them;
// whatever they hold, the daemon and its engines are unharmed.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/system/refusal.h"

namespace regroup::harness {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

class FileTest : public RefusalTest {
 protected:
  static std::string NewModelFolder() {
    static int counter = 0;
    return absl::StrCat(Data().root, "/broken-", counter++);
  }

  static Words CreateFrom(const std::string& folder, const std::string& name = "new") {
    return {"engine", "create", name, "--ranks=1-3", "--model=" + folder, "--lr=0.1"};
  }

  // What is wrong stands in a file; the flag that led to it is named as well.
  static Refusal BadModel(const std::string& folder, Words said) {
    said.push_back("--model=" + folder);
    return {CreateFrom(folder), kRefused, std::move(said)};
  }

  // A folder whose config.json is the small model's with changes.
  static Refusal BadConfig(const json& changes, Words said) {
    json config = ConfigOf(Data().untied.shape);
    config.update(changes);
    for (auto entry = config.begin(); entry != config.end();) {
      entry = changes.contains(entry.key()) && changes[entry.key()] == "ERASED"
                  ? config.erase(entry)
                  : std::next(entry);
    }
    const std::string folder = NewModelFolder();
    WriteModel(folder, config, Data().untied.weights);
    return BadModel(folder, std::move(said));
  }

  static Refusal BadConfigText(const std::string& text, Words said) {
    const std::string folder = NewModelFolder();
    WriteModel(folder, {}, Data().untied.weights);
    WriteFile(folder + "/config.json", text);
    return BadModel(folder, std::move(said));
  }

  // A folder with a good config and this file.
  static std::string FolderWith(const std::string& safetensors) {
    std::string folder = NewModelFolder();
    WriteModel(folder, ConfigOf(Data().untied.shape), {});
    WriteFile(folder + "/model.safetensors", safetensors);
    return folder;
  }

  static Refusal BadWeights(const std::string& safetensors, Words said) {
    return BadModel(FolderWith(safetensors), std::move(said));
  }

  static Refusal BadTensors(const TensorMap& tensors, Words said) {
    return BadWeights(EncodeSafetensors(tensors), std::move(said));
  }

  // The header of the good file, to be spoilt.
  static json Header(std::string* data) {
    const std::string file = EncodeSafetensors(Data().untied.weights);
    const size_t header_size =
        static_cast<unsigned char>(file[0]) + 256 * static_cast<unsigned char>(file[1]);
    *data = file.substr(8 + header_size);
    return json::parse(file.substr(8, header_size));
  }

  static Refusal BadTrain(const std::string& engine, const std::string& name,
                          const std::string& contents, Words said,
                          const Words& flags = {"--seq=16"}) {
    const std::string path = Data().root + "/" + name;
    WriteFile(path, contents);
    Words command = {"train", engine, "--data=" + path, "--steps=1", "--batch=2"};
    command.insert(command.end(), flags.begin(), flags.end());
    return {command, kRefused, std::move(said)};
  }

  static std::string LengthPrefix(uint64_t length) {
    std::string text;
    for (int i = 0; i < 8; ++i) text.push_back(static_cast<char>(length >> (8 * i)));
    return text;
  }
};

TEST_F(FileTest, Config_ThatIsNotOne_IsRefused) {
  ExpectRefused({BadConfigText("", {"config.json"}), BadConfigText("{", {"config.json"}),
                 BadConfigText("[]", {"config.json"}), BadConfigText("\xff\xfe{}", {"config.json"}),
                 BadConfigText(std::string(100000, '['), {"config.json"}),
                 BadConfigText("{\"hidden_size\": 1e400}", {"config.json", "1.8e308"}),
                 BadConfigText("{}", {"model_type"})});
}

TEST_F(FileTest, Config_UnsupportedValues_AreNamed) {
  ExpectRefused({BadConfig({{"model_type", "gpt2"}}, {"model_type", "gpt2", "llama"}),
                 BadConfig({{"hidden_act", "gelu"}}, {"hidden_act", "gelu", "silu"}),
                 BadConfig({{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}}}}, {"yarn"}),
                 BadConfig({{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}}, {"dynamic"}),
                 BadConfig({{"rope_theta", "ERASED"},
                            {"rope_parameters", {{"rope_type", "llama3"}, {"rope_theta", 1e4}}}},
                           {"rope_parameters", "factor"}),
                 BadConfig({{"attention_bias", true}}, {"q_proj.bias"}),
                 BadConfig({{"mlp_bias", true}}, {"mlp_bias"})});
}

TEST_F(FileTest, Config_WrongSizes_AreNamed) {
  ExpectRefused({BadConfig({{"hidden_size", "ERASED"}}, {"hidden_size"}),
                 BadConfig({{"vocab_size", "ERASED"}}, {"vocab_size"}),
                 BadConfig({{"hidden_size", 0}}, {"hidden_size", "0"}),
                 BadConfig({{"hidden_size", -64}}, {"hidden_size", "-64"}),
                 BadConfig({{"hidden_size", "64"}}, {"hidden_size", "64"}),
                 BadConfig({{"hidden_size", 64.5}}, {"hidden_size", "64.5"}),
                 BadConfig({{"num_hidden_layers", 0}}, {"num_hidden_layers", "0"}),
                 BadConfig({{"num_key_value_heads", 3}}, {"num_key_value_heads", "3", "4"}),
                 BadConfig({{"num_attention_heads", 3}, {"head_dim", "ERASED"}},
                           {"num_attention_heads", "3"}),
                 BadConfig({{"head_dim", 15}}, {"head_dim", "15"}),
                 BadConfig({{"rms_norm_eps", -1}}, {"rms_norm_eps", "-1"}),
                 BadConfig({{"rope_theta", 0}}, {"rope_theta", "0"}),
                 BadConfig({{"max_position_embeddings", 0}}, {"max_position_embeddings", "0"}),
                 BadConfig({{"tie_word_embeddings", "yes"}}, {"tie_word_embeddings"}),
                 BadConfig({{"vocab_size", 4000000000000000000}}, {"vocab_size"}),
                 BadConfig({{"num_hidden_layers", 1000000000}}, {"num_hidden_layers"}),
                 BadConfig({{"eos_token_id", 257}}, {"eos_token_id", "257"})});
}

TEST_F(FileTest, Weights_MissingMisspeltOrMisshapen_AreAllListed) {
  const TensorMap& good = Data().untied.weights;
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  TensorMap missing = good;
  missing.erase(up);
  TensorMap misspelt = missing;
  misspelt["model.layers.1.mlp.upp_proj.weight"] = good.at(up);
  TensorMap misshapen = good;
  misshapen["lm_head.weight"] = FromFloats({256, 64}, std::vector<float>(16384));
  TensorMap transposed = good;
  transposed["model.layers.0.mlp.down_proj.weight"].shape = {160, 64};
  TensorMap all = misspelt;
  all["lm_head.weight"] = misshapen.at("lm_head.weight");
  all.erase("model.norm.weight");
  ExpectRefused(
      {BadTensors(missing, {up}), BadTensors(misspelt, {up, "model.layers.1.mlp.upp_proj.weight"}),
       BadTensors(misshapen, {"lm_head.weight", "256", "257"}),
       BadTensors(transposed, {"model.layers.0.mlp.down_proj.weight", "160", "64"}),
       BadTensors(
           all, {up, "model.layers.1.mlp.upp_proj.weight", "lm_head.weight", "model.norm.weight"}),
       BadTensors({}, {"model.embed_tokens.weight"})});
}

// No model has a tensor without elements or without axes: none is dropped in silence, or kept by
// some ranks only.
TEST_F(FileTest, Weights_EmptyOrScalarTensors_AreRefused) {
  const auto with = [](const std::string& name, const std::vector<int64_t>& shape,
                       const std::string& said) {
    TensorMap tensors = Data().untied.weights;
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    tensors[name] = FromFloats(shape, std::vector<float>(count, 1));
    return BadTensors(tensors, {name + said});
  };
  const std::string norm = "model.layers.1.input_layernorm.weight";
  const std::string up = "model.layers.0.mlp.up_proj.weight";
  ExpectRefused({with("a.empty.weight", {0, 64}, ""), with("z.empty.weight", {0}, ""),
                 with("model.layers.0.scale", {}, ""), with(norm, {}, " is [], must be [64]"),
                 with(norm, {0}, " is [0], must be [64]"),
                 with(up, {0, 64}, " is [0, 64], must be [160, 64]")});
}

// Harmless extras are accepted: a tied head that is written out, and rotary tables.
TEST_F(FileTest, Weights_RedundantTensors_AreAccepted) {
  TensorMap tied = Data().tied.weights;
  tied["lm_head.weight"] = tied.at("model.embed_tokens.weight");
  tied["model.layers.0.self_attn.rotary_emb.inv_freq"] = FromFloats({8}, std::vector<float>(8));
  const std::string folder = NewModelFolder();
  WriteModel(folder, ConfigOf(Data().tied.shape), tied);
  cli().ctl().MustRun(CreateFrom(folder, "redundant"));
  EXPECT_EQ(Differences(cli().Export("redundant"), Data().tied.weights), Words{});
  cli().Delete("redundant");
}

TEST_F(FileTest, Safetensors_BrokenFiles_AreRefused) {
  const std::string good = EncodeSafetensors(Data().untied.weights);
  const std::string name = "model.safetensors";
  ExpectRefused(
      {BadWeights("", {name}), BadWeights("abc", {name}), BadWeights(good.substr(0, 7), {name}),
       BadWeights(good.substr(0, 100), {name}), BadWeights(good.substr(0, good.size() / 2), {name}),
       BadWeights(good.substr(0, good.size() - 1), {name}), BadWeights(good + "trailing", {name}),
       BadWeights(LengthPrefix(0) + good.substr(8), {name}),
       BadWeights(LengthPrefix(7) + good.substr(8), {name}),
       BadWeights(LengthPrefix(good.size()) + good.substr(8), {name}),
       BadWeights(LengthPrefix(uint64_t{1} << 63) + good.substr(8), {name}),
       BadWeights(LengthPrefix(~uint64_t{0}) + good.substr(8), {name}),
       BadWeights(EncodeSafetensors("[]", ""), {name}),
       BadWeights(EncodeSafetensors("{\"a\":1}", ""), {name}),
       BadWeights(EncodeSafetensors(std::string(200000, '{'), ""), {name})});
}

TEST_F(FileTest, Safetensors_WrongRanges_AreRefused) {
  std::string data;
  const json good = Header(&data);
  const std::string k = "model.layers.0.self_attn.k_proj.weight";
  const std::string v = "model.layers.0.self_attn.v_proj.weight";
  const auto with = [&](const std::string& tensor, const json& changes) {
    json header = good;
    header[tensor].update(changes);
    return EncodeSafetensors(header.dump(), data);
  };
  std::string twice = good.dump();
  twice.insert(1, "\"" + k + "\":" + good[k].dump() + ",");
  const auto end = static_cast<int64_t>(data.size());
  ExpectRefused(
      {BadWeights(with(v, {{"data_offsets", good[k]["data_offsets"]}}), {"model.safetensors"}),
       BadWeights(with(k, {{"data_offsets", {end, end + 8192}}}), {k}),
       BadWeights(with(k, {{"data_offsets", {8192, 0}}}), {k}),
       BadWeights(with(k, {{"data_offsets", {-1, 8191}}}), {k}),
       BadWeights(with(k, {{"data_offsets", json::array()}}), {k}),
       BadWeights(with(k, {{"shape", {-32, -64}}}), {k}),
       BadWeights(with(k, {{"shape", {4611686018427387904, 64}}}), {k}),
       BadWeights(with(k, {{"shape", "32"}}), {k}), BadWeights(with(k, {{"dtype", "I64"}}), {k}),
       BadWeights(with(k, {{"dtype", "F99"}}), {k, "F99"}),
       BadWeights(EncodeSafetensors(twice, data), {"duplicate", k})});
}

TEST_F(FileTest, Index_ThatLies_IsRefused) {
  const auto folder_with_index = [](const json& weight_map) {
    std::string folder = FolderWith(EncodeSafetensors(Data().untied.weights));
    std::filesystem::rename(folder + "/model.safetensors", folder + "/part.safetensors");
    WriteFile(folder + "/model.safetensors.index.json", json{{"weight_map", weight_map}}.dump());
    return folder;
  };
  json good = json::object();
  for (const auto& [name, tensor] : Data().untied.weights) good[name] = "part.safetensors";
  const auto with = [&](const std::string& file) {
    json map = good;
    map["model.norm.weight"] = file;
    return BadModel(folder_with_index(map), {file});
  };
  const std::string twice = folder_with_index(good);
  TensorMap second;
  second["model.norm.weight"] = Data().untied.weights.at("model.norm.weight");
  WriteFile(twice + "/second.safetensors", EncodeSafetensors(second));
  json map = good;
  map["model.norm.weight"] = "second.safetensors";
  WriteFile(twice + "/model.safetensors.index.json", json{{"weight_map", map}}.dump());
  ExpectRefused({with("missing.safetensors"), with("../l2/model.safetensors"), with("/etc/passwd"),
                 BadModel(twice, {"model.norm.weight"})});
  // And the good one is accepted.
  cli().ctl().MustRun(CreateFrom(folder_with_index(good), "indexed"));
  cli().Delete("indexed");
}

TEST_F(FileTest, Folder_WithOtherFormats_IsRefused) {
  const std::string folder = FolderWith("");
  std::filesystem::rename(folder + "/model.safetensors", folder + "/pytorch_model.bin");
  const std::string link = FolderWith("");
  std::filesystem::remove(link + "/model.safetensors");
  const std::string outside = NewFolder("outside");
  WriteFile(outside + "/model.safetensors", EncodeSafetensors(Data().untied.weights));
  std::filesystem::create_symlink(outside + "/model.safetensors", link + "/model.safetensors");
  const std::string empty = FolderWith("");
  std::filesystem::remove(empty + "/model.safetensors");
  ExpectRefused({BadModel(folder, {"safetensors"}),
                 BadModel(empty, {"safetensors", "random:" + empty}),
                 {CreateFrom(link), kRefused, {"--data-root"}}});
}

TEST_F(FileTest, Tokens_ThatCannotBeUsed_AreRefused) {
  const std::string row(34, '\0');  // 17 tokens
  std::string big_token = row;
  big_token[20] = 1;  // token 10 is 1 + 256 = 257
  big_token[21] = 1;
  ExpectRefused(
      {BadTrain("actor", "empty.u16.bin", "", {"--data", "empty.u16.bin"}),
       BadTrain("actor", "odd.u16.bin", row + "x", {"--data", "odd.u16.bin", "35"}),
       BadTrain("actor", "odd.u32.bin", row + row + "xx", {"--data", "odd.u32.bin"}),
       BadTrain("actor", "short.u16.bin", row.substr(2), {"--data", "short.u16.bin", "17", "16"}),
       BadTrain("actor", "big.u16.bin", big_token, {"big.u16.bin", "257", "10"}),
       BadTrain("actor", "text.txt", row, {"--data", "text.txt", ".u16.bin"}),
       BadTrain("net", "text2.u16.bin", row, {"--data", "text2.u16.bin", ".jsonl"}, {})});
  const auto from = [](const std::string& path) {
    return Words{"train", "actor", "--data=" + path, "--steps=1", "--batch=2", "--seq=16"};
  };
  const std::string outside = NewFolder("outside") + "/text.u16.bin";
  WriteTokens(outside, Data().text.tokens);
  std::filesystem::create_symlink(outside, Data().root + "/link.u16.bin");
  ExpectRefused({{from(Data().root + "/nothing.u16.bin"), kRefused, {"--data", "nothing.u16.bin"}},
                 {from(Data().root), kRefused, {"--data"}},
                 {from(Data().untied.folder), kRefused, {"--data"}},
                 {from(outside), kRefused, {"--data-root"}},
                 {from(Data().root + "/link.u16.bin"), kRefused, {"--data-root"}},
                 {from("/dev/zero"), kRefused, {"--data"}}});
}

TEST_F(FileTest, Rows_ThatCannotBeUsed_AreRefused) {
  const std::string good =
      json{{"x", std::vector<float>(8)}, {"y", std::vector<float>(4)}}.dump() + "\n";
  const auto bad = [&](const std::string& name, const std::string& line) {
    return BadTrain("net", name + ".jsonl", good + line + "\n",
                    {"--data", name + ".jsonl", "line 2"}, {});
  };
  ExpectRefused({BadTrain("net", "none.jsonl", "", {"--data", "none.jsonl"}, {}),
                 bad("text", "hello"), bad("array", "[1,2]"),
                 bad("no_y", R"({"x":[1,2,3,4,5,6,7,8]})"),
                 bad("short_x", R"({"x":[1,2,3],"y":[1,2,3,4]})"),
                 bad("long_y", R"({"x":[1,2,3,4,5,6,7,8],"y":[1,2,3,4,5]})"),
                 bad("words", R"({"x":[1,2,3,4,5,6,7,"8"],"y":[1,2,3,4]})"),
                 bad("huge", R"({"x":[1,2,3,4,5,6,7,1e400],"y":[1,2,3,4]})"), bad("blank", "")});
}

TEST_F(FileTest, MaskedRows_ThatCannotBeUsed_AreRefused) {
  const auto bad = [&](const std::string& name, const std::string& line, Words said) {
    said.push_back("--data");
    said.push_back(name + ".jsonl: line 2: ");
    return BadTrain("actor", name + ".jsonl", "{\"tokens\":[1,2]}\n" + line + "\n", said);
  };
  const std::string long_row = json{{"tokens", std::vector<int>(18, 1)}}.dump();
  ExpectRefused({BadTrain("actor", "nothing.jsonl", "", {"--data", "nothing.jsonl"}),
                 bad("long_tokens", long_row, {"18", "1 to 17", "--seq=16"}),
                 bad("no_tokens", R"({"mask":[1]})", {"tokens is missing"}),
                 bad("vocabulary", R"({"tokens":[1,257]})", {"257", "0 to 256"}),
                 bad("short_mask", R"({"tokens":[1,2],"mask":[1]})", {"list of 2 values"}),
                 bad("odd_mask", R"({"tokens":[1,2],"mask":[0,3]})", {"3", "0, 1, false or true"}),
                 bad("numbers", R"({"x":[1],"y":[2]})", {"unknown field", "tokens, mask"}),
                 bad("prose", "hello", {"not valid JSON"})});
}

// A FIFO keeps whoever opens it waiting; nobody may wait.
TEST_F(FileTest, Tokens_InAFifo_AreRefused) {
  const std::string path = Data().root + "/fifo.u16.bin";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  ExpectRefused({{{"train", "actor", "--data=" + path, "--steps=1", "--batch=2", "--seq=16"},
                  kRefused,
                  {"--data", "fifo.u16.bin"}}});
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace regroup::harness
