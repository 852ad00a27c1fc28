#include "tests/system/refusal.h"

#include "absl/strings/str_join.h"

namespace regroup::harness {
namespace {

std::string EngineList(const Cli& cli) { return cli.ctl().MustRun({"engine", "list"}).output; }

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
    SCOPED_TRACE(absl::StrJoin(refusal.command, " "));
    const CtlResult result = cli().ctl().Run(refusal.command, absl::Seconds(20));
    if (refusal.exit == kEither) {
      EXPECT_TRUE(result.exit == kRefused || result.exit == kUsage) << result.exit;
    } else {
      EXPECT_EQ(result.exit, refusal.exit);
    }
    EXPECT_EQ(result.output, "");
    EXPECT_EQ(SplitLines(result.errors).size(), 1u) << result.errors;
    for (const std::string& word : refusal.said) {
      EXPECT_NE(result.errors.find(word), std::string::npos)
          << "\"" << word << "\" is not in: " << result.errors;
    }
    EXPECT_EQ(EngineList(cli()), before);
  }
}

}  // namespace regroup::harness
