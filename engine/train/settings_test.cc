// Changing what may change while an engine lives.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "engine/group/thread_ranks.h"
#include "engine/model/test_models.h"
#include "engine/train/trainer.h"

namespace regroup {
namespace {

constexpr char kModel[] = "mlp:in=3,hidden=7,layers=3,out=2";

EngineSpec Spec(OptimizerKind kind, double learning_rate) {
  EngineSpec spec;
  spec.name = "tested";
  spec.optimizer.kind = kind;
  spec.optimizer.learning_rate = learning_rate;
  spec.optimizer.momentum = kind == OptimizerKind::kSgd ? 0.9 : 0;
  spec.optimizer.weight_decay = 0.01;
  return spec;
}

EngineSettings SettingsOf(const EngineSpec& spec) {
  return {spec.optimizer.learning_rate, spec.checks, spec.timeout};
}

EngineState Copy(const EngineState& state) {
  EngineState copy = state;
  for (UnitState& unit : copy.units) {
    unit.weights = unit.weights.clone();
    for (at::Tensor& moment : unit.moments) moment = moment.clone();
  }
  return copy;
}

class SettingsTest : public testing::Test {
 protected:
  SettingsTest() {
    std::string rows;
    for (int i = 0; i < 12; ++i) {
      rows += "{\"x\": [" + std::to_string(i * 0.1) + ", 1, -0.5], \"y\": [" +
              std::to_string(1 - i * 0.2) + ", 0.25]}\n";
    }
    folder_.Write("rows.jsonl", rows);
    data_ = Dataset::Open(folder_.File("rows.jsonl"), 0, Load().model->limits()).value();
  }

  static LoadedModel Load() { return LoadModel(kModel, std::nullopt, 3).value(); }

  // Runs `body` on each rank with its trainer, from `states` or the initial weights.
  void Run(EngineSpec spec, const std::map<int, EngineState>* states,
           const std::function<void(int, Trainer&)>& body) const {
    const std::vector<int> ranks = {0, 1};
    spec.layout.ranks = ranks;
    ASSERT_TRUE(CompleteLayout(&spec.layout).ok());
    RunInGroup(ranks, absl::Seconds(60), [&](int rank, std::unique_ptr<Group> group) {
      const LoadedModel own = Load();
      const ParamTable& table = own.model->table();
      EngineState state = MakeState(table, spec.layout, rank, spec.optimizer.num_moments());
      ASSERT_TRUE(LoadWeights(table, *own.weights, &state, nullptr).ok());
      if (states != nullptr) state = Copy(states->at(rank));
      auto trainer = Trainer::Make(spec, own.model.get(), std::move(state), std::move(group));
      ASSERT_TRUE(trainer.ok()) << trainer.status();
      body(rank, **trainer);
    });
  }

  TempFolder folder_;
  std::unique_ptr<Dataset> data_;
};

void ExpectSame(const EngineState& a, const EngineState& b) {
  for (size_t i = 0; i < a.units.size(); ++i) {
    EXPECT_TRUE(a.units[i].weights.equal(b.units[i].weights)) << i;
    for (size_t m = 0; m < a.units[i].moments.size(); ++m) {
      EXPECT_TRUE(a.units[i].moments[m].equal(b.units[i].moments[m])) << i;
    }
  }
}

// The steps after it are, to the bit, those of a trainer that was made with that rate.
TEST_F(SettingsTest, LearningRate_DecidesTheNextStep) {
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdamW}) {
    absl::Mutex mutex;
    std::map<int, EngineState> middle, end;
    Run(Spec(kind, 0.1), nullptr, [&](int rank, Trainer& trainer) {
      ASSERT_TRUE(trainer.Step(*data_, 4, 1).ok());
      {
        absl::MutexLock lock(&mutex);
        middle[rank] = Copy(trainer.state());
      }
      EngineSettings settings = SettingsOf(Spec(kind, 0.025));
      ASSERT_TRUE(trainer.Set(settings).ok());
      for (int i = 0; i < 2; ++i) {
        const auto step = trainer.Step(*data_, 4, 1);
        ASSERT_TRUE(step.ok()) << step.status();
        EXPECT_EQ(step->learning_rate, 0.025);
      }
      absl::MutexLock lock(&mutex);
      end[rank] = Copy(trainer.state());
    });
    Run(Spec(kind, 0.025), &middle, [&](int rank, Trainer& trainer) {
      for (int i = 0; i < 2; ++i) ASSERT_TRUE(trainer.Step(*data_, 4, 1).ok());
      ExpectSame(trainer.state(), end.at(rank));
    });
  }
}

TEST_F(SettingsTest, RanksThatDisagree_ChangeNothing) {
  absl::Mutex mutex;
  std::map<int, EngineState> expected;
  Run(Spec(OptimizerKind::kSgd, 0.1), nullptr, [&](int rank, Trainer& trainer) {
    ASSERT_TRUE(trainer.Step(*data_, 4, 1).ok());
    absl::MutexLock lock(&mutex);
    expected[rank] = Copy(trainer.state());
  });
  Run(Spec(OptimizerKind::kSgd, 0.1), nullptr, [&](int rank, Trainer& trainer) {
    EngineSettings settings = SettingsOf(Spec(OptimizerKind::kSgd, rank == 0 ? 0.5 : 0.25));
    const absl::Status status = trainer.Set(settings);
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_NE(status.message().find("lr 0.25"), std::string::npos) << status;
    EXPECT_TRUE(trainer.group().failure().ok());
    ASSERT_TRUE(trainer.Step(*data_, 4, 1).ok());
    ExpectSame(trainer.state(), expected.at(rank));
  });
}

TEST_F(SettingsTest, Checks_DecideWhatIsExchangedFromTheNextStepOn) {
  EngineSpec spec = Spec(OptimizerKind::kSgd, 0.1);
  Run(spec, nullptr, [&](int, Trainer& trainer) {
    const auto operations = [&] {
      const int64_t before = trainer.group().operations_issued();
      EXPECT_TRUE(trainer.Step(*data_, 4, 1).ok());
      return trainer.group().operations_issued() - before;
    };
    operations();  // records
    const int64_t basic = operations();
    EngineSettings settings = SettingsOf(spec);
    settings.checks = CheckLevel::kFull;
    ASSERT_TRUE(trainer.Set(settings).ok());
    const int64_t full = operations();
    settings.checks = CheckLevel::kOff;
    ASSERT_TRUE(trainer.Set(settings).ok());
    const int64_t off = operations();
    EXPECT_GT(full, basic);
    EXPECT_LT(off, basic);
    settings.checks = CheckLevel::kBasic;
    ASSERT_TRUE(trainer.Set(settings).ok());
    EXPECT_EQ(operations(), basic);
  });
}

TEST_F(SettingsTest, Timeout_BoundsTheNextWait) {
  EngineSpec spec = Spec(OptimizerKind::kSgd, 0.1);
  absl::Notification over;
  Run(spec, nullptr, [&](int rank, Trainer& trainer) {
    EngineSettings settings = SettingsOf(spec);
    settings.timeout = absl::Seconds(1);  // the group was formed with a minute
    ASSERT_TRUE(trainer.Set(settings).ok());
    if (rank == 1) {
      over.WaitForNotification();
      return;
    }
    const absl::Time start = absl::Now();
    EXPECT_EQ(trainer.Step(*data_, 4, 1).status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_LT(absl::Now() - start, absl::Seconds(50));
    over.Notify();
  });
}

}  // namespace
}  // namespace regroup
