// What a trainer allocates is what it lists, and that is what ZeRO-3 promises.
#include <gtest/gtest.h>
#include <malloc.h>

#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "engine/group/thread_ranks.h"
#include "engine/model/test_models.h"
#include "engine/train/trainer.h"

namespace regroup {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kSlack = 6 * kMiB;  // the graph's bookkeeping

// Bytes that the process has taken from the allocator and not given back.
int64_t AllocatedBytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

// Weights, gradients and two moments, 4 bytes each, of this rank's share; each unit's share is
// rounded up to whole cache lines.
int64_t Promised(const ParamTable& table, int ranks) {
  return 16 * (table.total_numel() / ranks + 16 * static_cast<int64_t>(table.units().size()));
}

int64_t GradientShardBytes(const EngineState& state) {
  int64_t bytes = 0;
  for (const UnitState& unit : state.units) bytes += 4 * unit.weights.numel();
  return bytes;
}

class MemoryTest : public testing::Test {
 protected:
  void Write(const std::map<std::string, std::string>& changes) {
    std::map<std::string, std::string> all = {{"vocab_size", "16384"},
                                              {"hidden_size", "128"},
                                              {"intermediate_size", "320"},
                                              {"num_hidden_layers", "6"}};
    all.insert(changes.begin(), changes.end());
    folder_.Write("config.json", SmallLlamaConfig(all));
    std::string text;
    for (int i = 0; i < 4 * 8 + 1; ++i) {
      text.push_back(static_cast<char>(i * 37));
      text.push_back(static_cast<char>(i % 64));
    }
    folder_.Write("text.u16.bin", text);
  }

  LoadedModel Load() const {
    return LoadModel("random:" + folder_.path(), std::nullopt, 0).value();
  }

  using Check = std::function<void(const ParamTable&, Trainer&)>;

  // Trains three steps on the ranks of `group` and calls `check` at the end.
  void Train(std::unique_ptr<Group> group, const Check& check) const {
    EngineSpec spec;
    spec.name = "tested";
    spec.optimizer.learning_rate = 1e-3;
    spec.layout.ranks = group->options().ranks;
    ASSERT_TRUE(CompleteLayout(&spec.layout).ok());
    const LoadedModel own = Load();
    const ParamTable& table = own.model->table();
    const auto data = Dataset::Open(folder_.File("text.u16.bin"), 8, own.model->limits()).value();
    EngineState state = MakeState(table, spec.layout, group->options().rank, 2);
    ASSERT_TRUE(LoadWeights(table, *own.weights, &state, nullptr).ok());
    auto trainer = Trainer::Make(spec, own.model.get(), std::move(state), std::move(group));
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    for (int step = 0; step < 3; ++step) ASSERT_TRUE((*trainer)->Step(*data, 4, 1).ok());
    check(table, **trainer);
  }

  void TrainOn(int ranks, const Check& check) const {
    std::vector<int> all(ranks);
    std::iota(all.begin(), all.end(), 0);
    RunInGroup(all, absl::Seconds(60),
               [&](int, std::unique_ptr<Group> group) { Train(std::move(group), check); });
  }

  TempFolder folder_;
};

// At rest, to within what the graph's bookkeeping takes.
TEST_F(MemoryTest, AllocatedBytes_AreTheListedOnesAndTheseThePromised) {
  Write({});
  RunInGroup({0}, absl::Seconds(60), [&](int, std::unique_ptr<Group> group) {
    // What the math libraries keep belongs to a thread, and the processor decides how much it is:
    // this thread takes it before anything is counted.
    auto again = Group::Form(group->options(), RendezvousAddress());
    ASSERT_TRUE(again.ok()) << again.status();
    Train(std::move(group), [](const ParamTable&, Trainer&) {});
    const int64_t before = AllocatedBytes();
    Train(*std::move(again), [&](const ParamTable& table, Trainer& trainer) {
      const int64_t allocated = AllocatedBytes() - before;
      const MemoryUse use = trainer.memory();
      const int64_t listed = use.weights_bytes + use.optimizer_bytes + use.buffers_bytes;
      EXPECT_GT(listed, 80 * kMiB);
      EXPECT_NEAR(allocated, listed, kSlack);
      const int64_t shards = GradientShardBytes(trainer.state());
      EXPECT_LE(use.weights_bytes + use.optimizer_bytes + shards, Promised(table, 1));
      EXPECT_LE(allocated, Promised(table, 1) + use.buffers_bytes - shards + kSlack);
    });
  });
}

// The largest units have one buffer to be gathered into and one for their gradient, whichever of
// them is at work; layers have two and three.
TEST_F(MemoryTest, EmbeddingAndHead_HaveOneBufferEach) {
  for (const std::string tied : {"false", "true"}) {
    for (const int ranks : {1, 2, 3}) {
      Write({{"tie_word_embeddings", tied}});
      TrainOn(ranks, [&](const ParamTable& table, Trainer& trainer) {
        const int64_t large = 4 * table.unit(0).numel;
        const int64_t layer = 4 * table.unit(1).numel;
        const MemoryUse use = trainer.memory();
        const int64_t buffers = use.buffers_bytes - GradientShardBytes(trainer.state());
        const double rounding = 1.02 * static_cast<double>(2 * large + 5 * layer);
        EXPECT_GE(buffers, large) << "tied " << tied << " on " << ranks;
        EXPECT_LE(static_cast<double>(buffers), rounding) << "tied " << tied << " on " << ranks;
        EXPECT_LE(use.weights_bytes + use.optimizer_bytes + GradientShardBytes(trainer.state()),
                  Promised(table, ranks));
      });
    }
  }
}

}  // namespace
}  // namespace regroup
