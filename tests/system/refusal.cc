#include "tests/system/refusal.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace regroup::harness {
namespace {

std::string EngineList(const Cli& cli) { return cli.ctl().MustRun({"engine", "list"}).output; }

// Nothing, or the finished operation with its error.
bool IsSilentOrFailedOperation(const std::string& output) {
  if (output.empty()) return true;
  const nlohmann::json operation = nlohmann::json::parse(output, nullptr, false);
  return operation.is_object() && !operation.value("error", "").empty();
}

std::vector<std::string> Problems(const Refusal& refusal, const CtlResult& result) {
  std::vector<std::string> problems;
  const bool right = refusal.exit == kEither ? result.exit == kRefused || result.exit == kUsage
                                             : result.exit == refusal.exit;
  if (!right) problems.push_back(absl::StrCat("exit code ", result.exit));
  if (!IsSilentOrFailedOperation(result.output)) {
    problems.push_back("it printed " + result.output);
  }
  if (SplitLines(result.errors).size() != 1) problems.emplace_back("not one line on stderr");
  // Words of a library, one thing said twice, and a hint at an engine that is not there.
  for (const absl::string_view unclear : {"exception", "engine describe new", "engine trace new"}) {
    if (absl::StrContains(result.errors, unclear)) problems.emplace_back(unclear);
  }
  const size_t phase = result.errors.find("phase ");
  if (phase != std::string::npos && result.errors.find("phase ", phase + 1) != std::string::npos) {
    problems.emplace_back("two phases");
  }
  for (const std::string& word : refusal.said) {
    if (result.errors.find(word) == std::string::npos) {
      problems.push_back(absl::StrCat("\"", word, "\" is not mentioned"));
    }
  }
  return problems;
}

}  // namespace

void RefusalTest::SetUpTestSuite() {
  StartDaemonOnFixtures(4);
  cli().Create("actor", "0-1", Data().untied.folder, OptimizerFlags(AdamW()));
  cli().Train("actor", {Data().text.path, 1, 4, kSeq, {}});
  cli().CreateRollout("rollout", "2", Data().untied.folder);
  cli().Create("net", "3", kMlpSpec, OptimizerFlags(Sgd()));
}

void RefusalTest::ExpectRefused(const std::vector<Refusal>& table) {
  const std::string before = EngineList(cli());
  for (const Refusal& refusal : table) {
    const CtlResult result = cli().ctl().Run(refusal.command, absl::Seconds(20));
    std::vector<std::string> problems = Problems(refusal, result);
    if (EngineList(cli()) != before) {
      problems.emplace_back("engines changed");
      const std::vector<std::string> names = cli().EngineNames();
      if (std::find(names.begin(), names.end(), "new") != names.end()) cli().Delete("new");
    }
    EXPECT_TRUE(problems.empty()) << absl::StrJoin(refusal.command, " ") << "\n  "
                                  << absl::StrJoin(problems, "; ") << "\n  " << result.errors;
  }
}

}  // namespace regroup::harness
