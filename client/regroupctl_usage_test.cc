// The command line of the real binary: what does not parse, exits with 2 and names the flag, the
// value and what is allowed. No server is there: whatever were sent would exit with 3.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/child_process.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

constexpr char kProgram[] = "client/regroupctl";
// Nobody listens on it, and it needs a privilege to do so.
constexpr char kNobody[] = "REGROUP_SERVER=127.0.0.1:1";

struct Result {
  int code;
  std::string out, err;
};

Result RunCtl(const std::vector<std::string>& arguments,
              const std::vector<std::string>& environment = {kNobody}) {
  ChildProcess child(kProgram, arguments, {environment, false, ""});
  const int code = child.Wait();
  return {code, child.out(), child.err()};
}

std::vector<std::string> Words(const std::string& line) { return absl::StrSplit(line, ' '); }

// `line` exits with `code`, prints nothing on stdout and one line on stderr that contains
// `message`.
void ExpectError(const std::vector<std::string>& arguments, int code, const std::string& message,
                 const std::vector<std::string>& environment = {kNobody}) {
  const Result result = RunCtl(arguments, environment);
  const std::string line = absl::StrJoin(arguments, " ");
  EXPECT_EQ(result.code, code) << line << "\n" << result.err;
  EXPECT_EQ(result.out, "") << line;
  EXPECT_EQ(result.err.rfind("regroupctl: ", 0), 0) << line << "\n" << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << line << "\n"
                                                                       << result.err;
  EXPECT_NE(result.err.find(message), std::string::npos) << line << "\n" << result.err;
}

constexpr char kCreate[] = "engine create actor --ranks=1-2 --model=mlp:in=8";
constexpr char kTrain[] = "train actor --data=d.jsonl --steps=1 --batch=1";
constexpr char kGenerate[] = "generate rollout --max-tokens=4";

TEST(Usage, WrongValue_NamesFlagValueAndWhatIsAllowed) {
  struct Case {
    std::string command, flag, value, allowed;
  };
  const std::string create = std::string(kCreate) + " --lr=1";
  const std::string sgd = create + " --optimizer=sgd";
  const std::string generate = std::string(kGenerate) + " --tokens=1";
  const Case cases[] = {
      {kCreate, "--lr", "0", "must be a finite number, above 0"},
      {kCreate, "--lr", "nan", "must be a finite number, above 0"},
      {kCreate, "--lr", "inf", "must be a finite number, above 0"},
      {kCreate, "--lr", "1e400", "must be a finite number, above 0"},
      {kCreate, "--lr", "-1", "must be a finite number, above 0"},
      {kCreate, "--lr", "0.1x", "must be a finite number, above 0"},
      {create, "--role", "Train", "must be one of train, infer"},
      {create, "--dtype", "fp8", "must be one of fp32, bf16, fp16"},
      {create, "--optimizer", "lion", "must be one of sgd, adam, adamw"},
      {sgd, "--momentum", "-0.1", "must be a finite number, at least 0"},
      {sgd, "--beta1", "0.9", "only for --optimizer=adam and adamw"},
      {create, "--momentum", "0.9", "only for --optimizer=sgd"},
      {create, "--beta1", "1", "must be a finite number, at least 0 and below 1"},
      {create, "--beta2", "1.5", "must be a finite number, at least 0 and below 1"},
      {create, "--eps", "0", "must be a finite number, above 0"},
      {create, "--weight-decay", "-1", "must be a finite number, at least 0"},
      {create, "--clip-norm", "inf", "must be a finite number, at least 0"},
      {create, "--seed", "-1", "must be an integer in 0..18446744073709551615"},
      {create, "--checks", "on", "must be one of off, basic, full"},
      {create, "--timeout", "30", "must be a number with a unit (ms, s, m, h), 1s to 1h"},
      {create, "--dp", "0", "must be an integer in 1..100000"},
      {create, "--tp", "two", "must be an integer in 1..100000"},
      {create, "--ep", "1.0", "must be an integer in 1..100000"},
      {create, "--shard-over", "experts", "must be PATTERN:AXES"},
      {create, "--offload", "gpu", "must be none, cpu or nvme:DIR"},
      {create, "--offload", "nvme:", "must be none, cpu or nvme:DIR"},
      {create, "--hpz", "0", "must be an integer in 1..100000"},
      {"engine create actor --ranks=1 --model=mlp:in=8 --role=infer", "--lr", "0.1",
       "only for --role=train"},
      {"engine create actor --ranks=1 --lr=1", "--model",
       "random:", "must be a folder, random:FOLDER or mlp:in=..,hidden=..,layers=..,out=.."},
      {"engine relayout actor --ranks=0", "--if-generation", "0", "must be an integer in 1.."},
      {"engine relayout actor --ranks=0", "--staging-mb", "0", "must be an integer in 1..65536"},
      {"engine relayout actor --ranks=0", "--staging-mb", "65537",
       "must be an integer in 1..65536"},
      {"engine set actor", "--lr", "x", "must be a finite number, above 0"},
      {"engine set actor", "--checks", "x", "must be one of off, basic, full"},
      {"engine set actor", "--timeout", "0s", "must be a number with a unit"},
      {"train actor --data=d --batch=1", "--steps", "0", "must be an integer in 1..1000000000"},
      {"train actor --data=d --steps=1", "--batch", "1e3", "must be an integer in 1..65536"},
      {kTrain, "--seq", "-1", "must be an integer in 0..1000000"},
      {kTrain, "--accumulate", "0", "must be an integer in 1..65536"},
      {"generate rollout --tokens=1", "--max-tokens", "0", "must be an integer in 1..1000000000"},
      {kGenerate, "--tokens", "1,,2", "must be token ids in 0..2147483647 separated by commas"},
      {kGenerate, "--tokens-file", "/nonexistent", "cannot be read: No such file or directory"},
      {generate, "--temperature", "nan", "must be a finite number, at least 0"},
      {generate, "--top-p", "1.1", "must be a finite number, at least 0 and at most 1"},
      {generate, "--top-k", "-1", "must be an integer in 0..2147483647"},
      {generate, "--seed", "x", "must be an integer in 0.."},
      {generate, "--stop-token", "a", "must be an integer in 0..2147483647"},
      {"status", "--server", "nowhere", "must be HOST:PORT with a port in 1..65535"},
      {"status", "--server", "h:99999", "must be HOST:PORT with a port in 1..65535"},
  };
  for (const Case& c : cases) {
    std::vector<std::string> arguments = Words(c.command);
    arguments.push_back(c.flag + "=" + c.value);
    ExpectError(arguments, 2, c.flag + "=" + c.value + ": " + c.allowed);
  }
}

TEST(Usage, WrongRanks_AreNamed) {
  for (const char* ranks : {"1-0", "0,0", "a", "-1", "0-", ",", "0,,1", "1.5", "100000", "0 1"}) {
    ExpectError(
        {"engine", "create", "actor", "--lr=1", "--model=mlp:x", std::string("--ranks=") + ranks},
        2, "--ranks: ");
    ExpectError({"engine", "relayout", "actor", std::string("--ranks=") + ranks}, 2, "--ranks: ");
  }
}

TEST(Usage, WrongName_IsNamed) {
  for (const char* command :
       {"engine describe", "engine trace", "engine delete",
        "engine create --ranks=0 --model=mlp:x --lr=1", "engine relayout --ranks=0",
        "engine set --lr=1", "train --data=d --steps=1 --batch=1",
        "generate --tokens=1 --max-tokens=1"}) {
    std::vector<std::string> arguments = Words(command);
    arguments.emplace_back("../actor");
    ExpectError(arguments, 2, "NAME=../actor: must be 1 to 63 letters");
  }
  ExpectError({"engine", "sync", "a b", "c"}, 2, "SRC=a b: must be");
  ExpectError({"engine", "sync", "a", "c/d"}, 2, "DST=c/d: must be");
  ExpectError({"export", "a/b", "dir"}, 2, "NAME=a/b: must be");
  ExpectError({"checkpoint", "save", "a/b", "dir"}, 2, "NAME=a/b: must be");
  for (const char* verb : {"describe", "watch", "cancel"}) {
    ExpectError({"operation", verb, "op/1"}, 2, "ID=op/1: must be the id of an operation");
  }
}

TEST(Usage, EmptyValue_IsAnErrorNotTheNextWord) {
  ExpectError({"train", "actor", "--data=", "--steps=1", "--batch=1"}, 2, "--data=: must be");
  ExpectError({"train", "actor", "--data", "", "--steps=1", "--batch=1"}, 2, "--data=: must be");
  ExpectError({"engine", "describe", ""}, 2, "word 3 after regroupctl is empty");
  ExpectError({"-o=", "status"}, 2, "-o=: must be");
}

TEST(Usage, MissingFlag_IsNamed) {
  ExpectError(Words("engine create actor --ranks=0 --lr=1"), 2, "--model is required");
  ExpectError(Words("engine create actor --model=mlp:x --lr=1"), 2, "--ranks is required");
  ExpectError(Words(kCreate), 2, "--lr is required for --role=train: a finite number, above 0");
  ExpectError(Words("engine create --ranks=0 --model=mlp:x --lr=1"), 2, "NAME is required");
  ExpectError(Words("engine relayout actor"), 2, "--ranks is required");
  ExpectError(Words("engine set actor"), 2, "give --checks, --timeout or --lr");
  ExpectError(Words("train actor --steps=1 --batch=1"), 2, "--data is required");
  ExpectError(Words("train actor --data=d --batch=1"), 2, "--steps is required");
  ExpectError(Words("train actor --data=d --steps=1"), 2, "--batch is required");
  ExpectError(Words("generate rollout --tokens=1"), 2, "--max-tokens is required");
  ExpectError(Words(kGenerate), 2, "give either --tokens=1,2,3 or --tokens-file=FILE");
  ExpectError(Words("generate rollout --max-tokens=1 --tokens=1 --tokens-file=f"), 2,
              "give either --tokens=1,2,3 or --tokens-file=FILE");
  ExpectError(Words("engine sync actor"), 2, "DST is required");
  ExpectError(Words("export actor"), 2, "DIR is required");
  ExpectError(Words("operation watch"), 2, "ID is required");
  ExpectError(Words("train actor --data=d --steps=1 --batch"), 2, "--batch");
}

TEST(Usage, UnknownWords_AreNamed) {
  ExpectError({}, 2, "COMMAND=: must be one of status, node, rank, engine, train, generate");
  ExpectError({"bogus"}, 2, "COMMAND=bogus: must be one of status, node, rank");
  ExpectError({"engine"}, 2, "must be one of create, list, describe, trace, set, delete");
  ExpectError({"engine", "bogus"}, 2, "COMMAND=bogus: must be one of create, list");
  ExpectError({"status", "extra"}, 2, "extra (see regroupctl status --help)");
  ExpectError({"status", "--bogus"}, 2, "--bogus (see regroupctl status --help)");
  ExpectError({"engine", "list", "-x"}, 2, "-x (see regroupctl engine list --help)");
  ExpectError(Words(std::string(kTrain) + " --steps=2"), 2, "--steps");
}

TEST(Usage, Output_IsTableOrJson) {
  ExpectError({"-o", "xml", "status"}, 2, "-o=xml: must be one of table, json");
  ExpectError({"status", "-oJSON"}, 2, "-o=JSON: must be one of table, json");
}

TEST(Usage, ServerVariable_IsCheckedByItsName) {
  ExpectError({"status"}, 2, "REGROUP_SERVER=nowhere: must be HOST:PORT",
              {"REGROUP_SERVER=nowhere"});
}

TEST(Usage, NotAvailableHere_SaysSo) {
  const std::string create = std::string(kCreate) + " --lr=1 ";
  ExpectError(Words(create + "--offload=cpu"), 1, "not available in this version: --offload");
  ExpectError(Words(create + "--offload=nvme:/x"), 1, "not available in this version: --offload");
  ExpectError(Words(create + "--hpz=2"), 1, "not available in this version: --hpz");
  ExpectError(Words(create + "--quantize-gather"), 1,
              "not available in this version: --quantize-gather");
  ExpectError(Words("engine trace actor --follow"), 1, "not available in this version: --follow");
}

// Everything that the protocol knows is sent, so that the server answers.
TEST(Usage, WhatParses_IsSent) {
  const std::string create = std::string(kCreate) + " --lr=1 ";
  for (const std::string& line :
       {create + "--offload=none",
        create + "--recompute",
        create + "--dry-run",
        create + "--shard-over=a.*:ep --shard-over b:dp,ep",
        create + "--dp=2 --tp=1 --ep=1",
        create + "--tp=2",
        create + "--dtype=bf16",
        create + "--optimizer=adam",
        std::string("engine create list --ranks=0 --model=mlp:x --role=infer"),
        std::string("engine describe status"),
        std::string("engine trace train --flight"),
        std::string("engine set actor --lr=0.1 --checks=full --timeout=5s"),
        std::string("engine relayout actor --ranks=0-3 --in-place --dry-run --if-generation=1"),
        std::string("engine delete engine"),
        std::string("engine sync list describe"),
        std::string("train actor --data=d --steps=1 --batch=1 --seq=4 --accumulate=2"),
        std::string("generate rollout --tokens=1,2 --max-tokens=1 --stop-token=1 --stop-token 2"),
        std::string("checkpoint save actor dir"),
        std::string("checkpoint load actor dir"),
        std::string("export actor dir"),
        std::string("operation list"),
        std::string("operation describe op-1"),
        std::string("operation cancel op-1"),
        std::string("rank list -o json"),
        std::string("node list"),
        std::string("status")}) {
    ExpectError(Words(line), 3, "no answer from 127.0.0.1:1");
  }
}

TEST(Usage, Help_IsPrinted) {
  for (const char* line : {"--help", "engine --help", "engine create --help", "train -h"}) {
    const Result result = RunCtl(Words(line));
    EXPECT_EQ(result.code, 0) << line;
    EXPECT_NE(result.out.find("Usage: regroupctl"), std::string::npos) << line;
    EXPECT_EQ(result.err, "") << line;
  }
}

TEST(Usage, FullDisk_IsAnError) {
  EXPECT_EQ(RunCtl({"--help"}).code, 0);
  ChildProcess shell("/bin/sh", {"-c", std::string(kProgram) + " --help >/dev/full"},
                     {{kNobody}, false, ""});
  EXPECT_EQ(shell.Wait(), 1);
  EXPECT_NE(shell.err().find("cannot write to stdout"), std::string::npos) << shell.err();
}

}  // namespace
}  // namespace regroup
