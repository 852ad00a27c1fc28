#include "engine/infer/inference_engine.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "engine/group/comm_status.h"
#include "engine/infer/resident_runner.h"

namespace regroup {
namespace {

class ResidentEngine : public InferenceEngine {
 public:
  ResidentEngine(const Model* model, EngineState state, ResidentRunner runner)
      : state_(std::move(state)), runner_(std::move(runner)), generation_(model) {}

  absl::Status StartGeneration(const std::vector<PromptRow>& rows,
                               const SamplingOptions& options) override {
    return generation_.Start(rows, options);
  }

  absl::StatusOr<std::vector<RowToken>> DecodeToken(
      const std::function<absl::Status()>& may_go_on) override {
    std::vector<RowToken> tokens;
    const absl::Status done = CatchStatus("generate", [&]() -> absl::Status {
      const at::NoGradGuard no_grad;
      for (const size_t row : generation_.Due()) {
        if (may_go_on) {
          if (absl::Status status = may_go_on(); !status.ok()) return status;
        }
        absl::Status decoded = generation_.Decode(runner_, absl::MakeConstSpan(&row, 1), &tokens);
        if (!decoded.ok()) return decoded;
      }
      return absl::OkStatus();
    });
    if (!done.ok()) {
      EndGeneration();  // some rows went on and others did not
      return done;
    }
    return tokens;
  }

  int64_t unfinished() const override { return generation_.unfinished(); }
  int64_t cache_bytes() const override { return generation_.cache_bytes(); }
  void EndGeneration() override { generation_.End(); }
  const EngineState& state() const override { return state_; }

 private:
  EngineState state_;
  ResidentRunner runner_;
  Generation generation_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<InferenceEngine>> InferenceEngine::Make(const Model* model,
                                                                       EngineState state) {
  absl::StatusOr<ResidentRunner> runner = ResidentRunner::Make(model->table(), state);
  if (!runner.ok()) return runner.status();
  return std::make_unique<ResidentEngine>(model, std::move(state), *std::move(runner));
}

}  // namespace regroup
