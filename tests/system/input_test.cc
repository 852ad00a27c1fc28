// Every wrong flag, name, rank list, path or number gets an error that names it, and changes
// nothing.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/system/refusal.h"

namespace regroup::harness {
namespace {

using Words = std::vector<std::string>;

class InputTest : public RefusalTest {
 protected:
  static Words Create(const Words& flags, const std::string& name = "new",
                      const std::string& ranks = "0-1", const std::string& model = kMlpSpec) {
    Words command = {"engine", "create", name, "--ranks=" + ranks, "--model=" + model};
    command.insert(command.end(), flags.begin(), flags.end());
    return command;
  }

  // As `create` of a trainer, with one more flag.
  static Refusal BadFlag(const std::string& flag, const std::string& value, int exit = kEither) {
    Words flags = {flag + "=" + value};
    if (flag != "--lr") flags.emplace_back("--lr=0.1");
    if (flag == "--momentum") flags.emplace_back("--optimizer=sgd");
    return {Create(flags), exit, {flag, value}};
  }

  static Refusal BadRanks(const std::string& ranks, int exit = kEither) {
    return {Create({"--lr=0.1"}, "new", ranks), exit, {"--ranks", ranks}};
  }

  static Refusal BadModel(const std::string& model, Words said, int exit = kEither) {
    return {Create({"--lr=0.1"}, "new", "0-1", model), exit, std::move(said)};
  }

  static Words Train(const Words& flags, const std::string& engine = "actor") {
    Words command = {"train", engine};
    const auto given = [&](const std::string& name) {
      for (const std::string& flag : flags) {
        if (flag.rfind(name + "=", 0) == 0) return true;
      }
      return false;
    };
    if (!given("--data")) command.push_back("--data=" + Data().text.path);
    for (const std::string name : {"--steps", "--batch", "--seq"}) {
      if (!given(name)) command.push_back(name + "=2");
    }
    command.insert(command.end(), flags.begin(), flags.end());
    return command;
  }

  static Refusal BadTrainFlag(const std::string& flag, const std::string& value) {
    return {Train({flag + "=" + value}), kEither, {flag, value}};
  }

  static Words Generate(const Words& flags, const std::string& engine = "rollout") {
    Words command = {"generate", engine};
    bool has_prompt = false;
    bool has_max = false;
    for (const std::string& flag : flags) {
      has_prompt = has_prompt || flag.rfind("--tokens", 0) == 0;
      has_max = has_max || flag.rfind("--max-tokens", 0) == 0;
    }
    if (!has_prompt) command.emplace_back("--tokens=1,2,3");
    if (!has_max) command.emplace_back("--max-tokens=2");
    command.insert(command.end(), flags.begin(), flags.end());
    return command;
  }

  static Refusal BadGenerateFlag(const std::string& flag, const std::string& value) {
    return {Generate({flag + "=" + value}), kEither, {flag, value}};
  }
};

TEST_F(InputTest, CommandLine_ThatDoesNotParse_SendsNothing) {
  ExpectRefused({{{}, kUsage, {}},
                 {{"nonsense"}, kUsage, {"nonsense"}},
                 {{"engine"}, kUsage, {}},
                 {{"engine", "nonsense"}, kUsage, {"nonsense"}},
                 {{"engine", "list", "surplus"}, kUsage, {"surplus"}},
                 {{"status", "--nonsense"}, kUsage, {"--nonsense"}},
                 {{"engine", "create"}, kUsage, {"NAME"}},
                 {{"engine", "create", "new", "--ranks=0"}, kUsage, {"--model"}},
                 {{"engine", "create", "new", absl::StrCat("--model=", kMlpSpec), "--lr=1"},
                  kUsage,
                  {"--ranks"}},
                 {Create({}), kUsage, {"--lr"}},
                 {{"engine", "relayout", "actor"}, kUsage, {"--ranks"}},
                 {{"engine", "sync", "actor"}, kUsage, {"DST"}},
                 {{"train", "actor", "--steps=1", "--batch=1"}, kUsage, {"--data"}},
                 {{"train", "actor", "--data=x.u16.bin", "--batch=1"}, kUsage, {"--steps"}},
                 {{"train", "actor", "--data=x.u16.bin", "--steps=1"}, kUsage, {"--batch"}},
                 {{"generate", "rollout", "--tokens=1"}, kUsage, {"--max-tokens"}},
                 {{"generate", "rollout", "--max-tokens=1"}, kUsage, {"--tokens"}},
                 {Generate({"--tokens=1", "--tokens-file=x"}), kUsage, {"--tokens"}},
                 {{"export", "actor"}, kUsage, {"DIR"}},
                 {{"operation", "describe"}, kUsage, {"ID"}},
                 {{"status", "-o", "yaml"}, kUsage, {"yaml"}},
                 {{"status", "--server=nonsense"}, kUsage, {"--server", "nonsense"}},
                 {{"status", "--server=127.0.0.1:0"}, kUsage, {"--server", "127.0.0.1:0"}},
                 {{"status", "--server=127.0.0.1:99999"}, kUsage, {"--server", "99999"}}});
}

TEST_F(InputTest, Server_ThatIsNotThere_IsExitThree) {
  const CtlResult result = cli().ctl().Run({"status", "--server=127.0.0.1:1"}, absl::Seconds(60));
  EXPECT_EQ(result.exit, kNoAnswer);
  EXPECT_NE(result.errors.find("127.0.0.1:1"), std::string::npos) << result.errors;
}

TEST_F(InputTest, Create_WrongNames_AreRefused) {
  std::vector<Refusal> table;
  for (const std::string name :
       {"a/b", "a b", ".a", "_a", "a*", "\xc3\xa9", "a\nb", "../x", "a:b"}) {
    table.push_back({Create({"--lr=0.1"}, name), kEither, {"NAME"}});
  }
  table.push_back({Create({"--lr=0.1"}, std::string(64, 'a')), kEither, {"NAME", "63"}});
  table.push_back({Create({"--lr=0.1"}, ""), kEither, {}});
  table.push_back({Create({"--lr=0.1"}, "actor"), kRefused, {"actor", "exists"}});
  table.push_back({Create({"--lr=0.1"}, "rollout"), kRefused, {"rollout", "exists"}});
  ExpectRefused(table);
}

TEST_F(InputTest, Create_WrongRankLists_AreRefused) {
  std::vector<Refusal> table = {{Create({"--lr=0.1"}, "new", ""), kUsage, {"--ranks"}},
                                {Create({"--lr=0.1"}, "new", "4"), kRefused, {"rank 4", "3"}},
                                {Create({"--lr=0.1"}, "new", "0-4"), kRefused, {"rank 4", "3"}},
                                {Create({"--lr=0.1"}, "new", "99999"), kRefused, {"99999", "3"}}};
  for (const std::string ranks : {"0-",
                                  "-",
                                  ",",
                                  "0,,1",
                                  "0,",
                                  "-1",
                                  "a",
                                  "0,b",
                                  "3-1",
                                  "0,0",
                                  "0-1,1",
                                  "1-2-3",
                                  " 0",
                                  "0 ",
                                  "0x1",
                                  "1.5",
                                  "+1",
                                  "100000",
                                  "99999999999999999999",
                                  "0-99999999999"}) {
    table.push_back(BadRanks(ranks, kUsage));
  }
  ExpectRefused(table);
}

TEST_F(InputTest, Create_WrongMeshes_AreRefused) {
  ExpectRefused(
      {BadFlag("--dp", "3"),
       BadFlag("--dp", "1"),
       BadFlag("--dp", "-1"),
       BadFlag("--dp", "x"),
       BadFlag("--dp", "99999999999"),
       BadFlag("--tp", "3"),
       {Create({"--lr=0.1", "--tp=2"}), kRefused, {"not available in this version", "--tp"}},
       {Create({"--lr=0.1", "--ep=2"}), kRefused, {"not available in this version", "--ep"}}});
}

TEST_F(InputTest, Create_WrongNumbers_AreRefused) {
  std::vector<Refusal> table;
  for (const std::string value : {"nan", "inf", "-inf", "-1e-3", "abc", "true", "1e400", "1e-400",
                                  "0x10", "1,5", "1 ", "--", "1e"}) {
    table.push_back(BadFlag("--lr", value, kUsage));
  }
  for (const std::string value : {"1", "1.0", "-0.1", "nan", "2"}) {
    table.push_back(BadFlag("--beta1", value));
    table.push_back(BadFlag("--beta2", value));
  }
  for (const std::string value : {"-1e-8", "nan", "x"}) table.push_back(BadFlag("--eps", value));
  for (const std::string value : {"-1", "nan", "inf", "x"}) {
    table.push_back(BadFlag("--weight-decay", value));
    table.push_back(BadFlag("--clip-norm", value));
    table.push_back(BadFlag("--momentum", value));
  }
  for (const std::string value : {"-1", "18446744073709551616", "1.5", "x"}) {
    table.push_back(BadFlag("--seed", value));
  }
  for (const std::string value : {"0", "0s", "-1s", "x", "30", "inf", "25h", "1us"}) {
    table.push_back(BadFlag("--timeout", value));
  }
  ExpectRefused(table);
}

TEST_F(InputTest, Create_WrongChoices_AreRefusedWithTheAllowedOnes) {
  ExpectRefused(
      {{Create({"--lr=0.1", "--role=both"}), kUsage, {"--role", "both", "train", "infer"}},
       {Create({"--lr=0.1", "--dtype=fp64"}), kUsage, {"--dtype", "fp64", "fp32"}},
       {Create({"--lr=0.1", "--optimizer=lion"}),
        kUsage,
        {"--optimizer", "lion", "sgd", "adam", "adamw"}},
       {Create({"--lr=0.1", "--checks=some"}), kUsage, {"--checks", "some", "basic"}},
       {Create({"--lr=0.1", "--optimizer=sgd", "--beta1=0.5"}), kUsage, {"--beta1"}},
       {Create({"--lr=0.1", "--momentum=0.5"}), kUsage, {"--momentum"}},
       {Create({"--role=infer", "--lr=0.1"}), kUsage, {"--lr"}},
       {Create({"--role=infer", "--recompute"}), kUsage, {"--recompute", "train"}}});
}

// Sizes are checked before anything is allocated.
TEST_F(InputTest, Create_BeyondTheMemory_IsRefusedWithTheNumbers) {
  const std::string huge = "mlp:in=8,hidden=100000,layers=10,out=4";
  ExpectRefused({{Create({"--lr=0.1"}, "new", "2", huge), kRefused, {"memory", "available"}},
                 {Create({"--role=infer"}, "new", "2", huge), kRefused, {"memory", "available"}}});
}

// What is promised for later says so, and never passes in silence.
TEST_F(InputTest, LaterFeatures_SayThatTheyAreNotAvailable) {
  std::vector<Refusal> table;
  const auto later = [&](Words command, const std::string& what) {
    table.push_back({std::move(command), kRefused, {"not available in this version", what}});
  };
  for (const std::string flag :
       {"--offload=cpu", "--hpz=2", "--quantize-gather", "--dry-run", "--shard-over=layers:dp"}) {
    later(Create({"--lr=0.1", flag}), flag.substr(2, flag.find('=') - 2));
  }
  later({"engine", "relayout", "actor", "--ranks=1-2", "--dry-run"}, "dry");
  later({"engine", "relayout", "actor", "--ranks=1-2", "--in-place"}, "in");
  later({"engine", "relayout", "actor", "--ranks=1-2", "--tp=2"}, "--tp");
  later({"engine", "trace", "actor", "--flight"}, "flight");
  later({"checkpoint", "save", "actor", Data().root + "/checkpoint"}, "checkpoint");
  later({"checkpoint", "load", "actor", Data().root + "/checkpoint"}, "checkpoint");
  ExpectRefused(table);
}

TEST_F(InputTest, Create_WrongModelSpecs_AreRefused) {
  const std::string root = Data().root;
  const std::string outside = NewFolder("outside");
  WriteSmallLlama(outside + "/model", SmallLlama{}, 1);
  std::filesystem::create_directory_symlink(outside + "/model", root + "/link");
  std::filesystem::create_directories(root + "/no_config");
  ExpectRefused({BadModel(root + "/nothing", {"nothing"}, kRefused),
                 BadModel("random:" + root + "/nothing",
                          {"--model=random:" + root + "/nothing", "mlp:"}, kRefused),
                 BadModel("hf:gpt2", {"--model", "hf:gpt2", "allowed"}, kRefused),
                 BadModel(root + "/no_config", {"config.json"}, kRefused),
                 BadModel(Data().text.path, {"text.u16.bin"}, kRefused),
                 BadModel("/etc", {"--data-root", "/etc"}, kRefused),
                 BadModel("random:/etc", {"--data-root", "/etc"}, kRefused),
                 BadModel(outside + "/model", {"--data-root"}, kRefused),
                 BadModel(root + "/../" + outside.substr(outside.rfind('/') + 1) + "/model",
                          {"--data-root"}, kRefused),
                 BadModel(root + "/link", {"--data-root"}, kRefused),
                 BadModel("mlp:", {"mlp"}),
                 BadModel("mlp:in=8,hidden=16,layers=2", {"out"}),
                 BadModel("mlp:in=0,hidden=16,layers=2,out=4", {"in", "0"}),
                 BadModel("mlp:in=-8,hidden=16,layers=2,out=4", {"in", "-8"}),
                 BadModel("mlp:in=x,hidden=16,layers=2,out=4", {"in", "x"}),
                 BadModel("mlp:in=8,hidden=16,layers=2,out=4,depth=3", {"depth"}),
                 BadModel("mlp:in=8,in=8,hidden=16,layers=2,out=4", {"in"}),
                 BadModel("mlp:in=8,hidden=99999999999999999999,layers=2,out=4", {"hidden"}),
                 BadModel("mlp:in=8,hidden=1000000,layers=1000000,out=4", {"mlp"}),
                 BadModel("random:", {"--model"}),
                 BadModel("http://x/y", {})});
}

TEST_F(InputTest, UnknownEnginesAndOperations_AreNamed) {
  std::vector<Refusal> table;
  for (const Words& command : std::vector<Words>{{"engine", "describe", "nobody"},
                                                 {"engine", "trace", "nobody"},
                                                 {"engine", "delete", "nobody"},
                                                 {"engine", "relayout", "nobody", "--ranks=0"},
                                                 {"engine", "sync", "nobody", "rollout"},
                                                 {"engine", "sync", "actor", "nobody"},
                                                 {"export", "nobody", Data().root + "/out"},
                                                 Train({}, "nobody"),
                                                 Generate({}, "nobody"),
                                                 {"operation", "describe", "nobody"},
                                                 {"operation", "watch", "nobody"},
                                                 {"operation", "cancel", "nobody"}}) {
    table.push_back({command, kRefused, {"nobody"}});
  }
  ExpectRefused(table);
}

TEST_F(InputTest, Sync_WrongRoles_NameTheArgument) {
  ExpectRefused({{{"engine", "sync", "rollout", "actor"}, kRefused, {"SRC=rollout", "trainer"}},
                 {{"engine", "sync", "actor", "net"}, kRefused, {"DST=net", "inference"}},
                 {{"engine", "sync", "actor", "actor"}, kRefused, {"DST=actor"}}});
}

TEST_F(InputTest, Relayout_WrongInput_IsRefused) {
  const auto relayout = [](const Words& flags, const std::string& engine = "actor") {
    Words command = {"engine", "relayout", engine};
    command.insert(command.end(), flags.begin(), flags.end());
    return command;
  };
  ExpectRefused(
      {{relayout({"--ranks=4"}), kRefused, {"rank 4", "3"}},
       {relayout({"--ranks=0,0"}), kUsage, {"--ranks", "0,0"}},
       {relayout({"--ranks=0-"}), kUsage, {"--ranks", "0-"}},
       {relayout({"--ranks=0-2", "--dp=2"}), kEither, {"--dp", "2"}},
       {relayout({"--ranks=0-2", "--if-generation=7"}), kRefused, {"generation", "7", "1"}},
       {relayout({"--ranks=0-2", "--if-generation=0"}), kUsage, {"--if-generation", "0"}},
       {relayout({"--ranks=0-2", "--if-generation=x"}), kUsage, {"--if-generation", "x"}},
       {relayout({"--ranks=0-2", "--staging-mb=0"}), kUsage, {"--staging-mb", "0"}},
       {relayout({"--ranks=0-2", "--staging-mb=-1"}), kUsage, {"--staging-mb", "-1"}},
       {relayout({"--ranks=0-2", "--staging-mb=x"}), kUsage, {"--staging-mb", "x"}},
       {relayout({"--ranks=0-2"}, "rollout"), kRefused, {"rollout", "train"}}});
}

TEST_F(InputTest, Train_WrongNumbers_AreRefused) {
  std::vector<Refusal> table;
  for (const std::string flag : {"--steps", "--batch"}) {
    for (const std::string value : {"0", "-1", "x", "1.5", "9223372036854775808", "1e3"}) {
      table.push_back(BadTrainFlag(flag, value));
    }
  }
  for (const std::string value : {"-1", "x", "65", "2147483648", "9223372036854775808"}) {
    table.push_back(BadTrainFlag("--seq", value));
  }
  for (const std::string value : {"0", "-1", "x"})
    table.push_back(BadTrainFlag("--accumulate", value));
  table.push_back({Train({"--seq=0"}), kEither, {"--seq"}});
  table.push_back({{"train", "actor", "--data=" + Data().text.path, "--steps=1", "--batch=1"},
                   kRefused,
                   {"--seq is missing"}});
  table.push_back({Train({"--accumulate=3", "--batch=2"}), kEither, {"--accumulate", "3"}});
  table.push_back({Train({}, "rollout"), kRefused, {"rollout", "train"}});
  table.push_back(
      {Train({"--data=" + Data().mlp_path, "--seq=4"}, "net"), kRefused, {"--seq", "4"}});
  ExpectRefused(table);
}

std::string LongList() {
  std::string text;
  for (int i = 0; i < 64; ++i) text += ",1";
  return text;
}

TEST_F(InputTest, Generate_WrongInput_IsRefused) {
  const std::string folder = NewFolder("prompts");
  const auto file = [&](const std::string& name, const std::string& contents) {
    WriteFile(folder + "/" + name, contents);
    return Generate({"--tokens-file=" + folder + "/" + name});
  };
  std::vector<Refusal> table = {
      {file("empty", ""), kUsage, {"--tokens-file", "empty"}},
      {file("text", "hello\n"), kUsage, {"--tokens-file", "line 1"}},
      {file("no_array", "[1]\n{}\n"), kUsage, {"--tokens-file", "line 2"}},
      {file("no_prompt", "[]\n"), kUsage, {"--tokens-file", "line 1"}},
      {file("fraction", "[1.5]\n"), kUsage, {"--tokens-file", "line 1"}},
      {file("negative", "[-1]\n"), kUsage, {"--tokens-file", "line 1"}},
      {file("vocabulary", "[1]\n[2,257]\n"), kRefused, {"257", "--tokens-file", "line 2"}},
      {file("long", "[1]\n[1" + LongList() + "]\n"), kRefused, {"--tokens-file", "line 2", "64"}},
      {Generate({"--tokens-file=/nowhere"}), kUsage, {"--tokens-file"}},
      {Generate({"--tokens-file=" + folder}), kUsage, {"--tokens-file"}},
      {Generate({}, "net"), kRefused, {"net", "language model"}}};
  for (const std::string value : {"1,x", ",", "1,,2", "-1", "257", "1,257", "2147483648", "1.5"}) {
    table.push_back(BadGenerateFlag("--tokens", value));
    table.back().said = {"--tokens"};
  }
  for (const std::string value : {"0", "-1", "x", "9223372036854775808"}) {
    table.push_back(BadGenerateFlag("--max-tokens", value));
  }
  for (const std::string value : {"-1", "nan", "inf", "x"}) {
    table.push_back(BadGenerateFlag("--temperature", value));
  }
  for (const std::string value : {"1.5", "-0.1", "nan", "x"}) {
    table.push_back(BadGenerateFlag("--top-p", value));
  }
  for (const std::string value : {"-1", "x", "1.5"})
    table.push_back(BadGenerateFlag("--top-k", value));
  for (const std::string value : {"-1", "x"}) table.push_back(BadGenerateFlag("--seed", value));
  for (const std::string value : {"-1", "257", "x"}) {
    table.push_back(BadGenerateFlag("--stop-token", value));
  }
  ExpectRefused(table);
}

TEST_F(InputTest, Export_WrongFolders_AreRefused) {
  const std::string root = Data().root;
  const std::string outside = NewFolder("outside");
  std::filesystem::create_directory_symlink(outside, root + "/out_link");
  const auto to = [](const std::string& folder) { return Words{"export", "actor", folder}; };
  ExpectRefused({{to("/etc/regroup"), kRefused, {"--data-root", "/etc/regroup"}},
                 {to(outside + "/x"), kRefused, {"--data-root", outside}},
                 {to(root + "/../x"), kRefused, {"--data-root"}},
                 {to(root + "/out_link/x"), kRefused, {"--data-root"}},
                 {to(root + "/out_link"), kRefused, {"--data-root"}},
                 {to(root + "/no/parent/at/all"), kRefused, {root + "/no"}},
                 {to(root), kRefused, {root}},
                 {to(Data().untied.folder), kRefused, {"DIR=" + Data().untied.folder, "empty"}},
                 {to(Data().text.path), kRefused, {"DIR=" + Data().text.path}}});
  EXPECT_TRUE(std::filesystem::is_empty(outside));
}

}  // namespace
}  // namespace regroup::harness
