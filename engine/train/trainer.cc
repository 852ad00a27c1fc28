#include "engine/train/trainer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/group/agreement.h"
#include "engine/group/comm_status.h"
#include "engine/optim/optimizer.h"
#include "engine/zero/sharded_runner.h"

namespace regroup {
namespace {

// What each rank tells the others after backward, before anything is applied.
struct StepReport {
  double loss = 0;            // this rank's part of the global loss
  double sum_of_squares = 0;  // of its gradient shards
  int32_t bad_unit = -1;      // the first with a non-finite gradient, -1 = none
};

class ZeroTrainer : public Trainer {
 public:
  ZeroTrainer(const EngineSpec& spec, const Model* model, EngineState state,
              std::unique_ptr<Group> group)
      : spec_(spec),
        model_(model),
        state_(std::move(state)),
        group_(std::move(group)),
        runner_(&model->table(), &state_, {{kDataParallelGroup, group_.get()}}, spec.checks,
                spec.recompute),
        generation_(model),
        weights_bytes_(WeightsBytes(state_)),
        optimizer_bytes_(OptimizerBytes(state_)) {}

  absl::StatusOr<StepResult> Step(const Dataset& data, int64_t batch, int64_t accumulate) override {
    if (absl::Status failure = group_->failure(); !failure.ok()) return failure;
    StepResult result;
    const absl::Duration checked_before = TimeInAgreements();
    result.learning_rate = spec_.optimizer.learning_rate;
    const std::vector<int64_t> rows = BatchRows(state_.data_position, batch, data.rows());
    result.tokens = data.CountTargets(rows);
    absl::StatusOr<std::vector<Batch>> mine = LoadRows(data, rows, accumulate, result.tokens);
    if (!mine.ok()) return mine.status();
    if (result.tokens == 0) {
      result.skipped = true;
      result.reason = "no counted target in the batch";
    } else if (absl::Status status = Passes(*std::move(mine), &result); !status.ok()) {
      group_->Abort(status);
      return status;
    }
    ++state_.data_position;
    result.step = state_.step;
    result.data_position = state_.data_position;
    result.weights_version = state_.weights_version;
    result.check_seconds = absl::ToDoubleSeconds(TimeInAgreements() - checked_before);
    return result;
  }

  absl::Status GatherTo(ExportWriter* writer) override {
    absl::Status written;
    const absl::Status status = CatchStatus(absl::StrCat("engine ", spec_.name, ", export"), [&] {
      for (const Unit& unit : model_->table().units()) {
        ThrowIfError(runner_.Gather(unit.id));
        const absl::Span<const at::Tensor> parameters = runner_.parameters(unit.id);
        for (size_t i = 0; writer != nullptr && written.ok() && i < parameters.size(); ++i) {
          written = writer->Write(unit.parameters[i], parameters[i].detach());
        }
        runner_.Release(unit.id);
      }
      return absl::OkStatus();
    });
    if (!status.ok()) {
      group_->Abort(status);
      return status;
    }
    return Agree(*group_, "export", {}, written);
  }

  absl::Status StartGeneration(const std::vector<PromptRow>& rows,
                               const SamplingOptions& options) override {
    const absl::Status started = generation_.Start(rows, options);
    CountCaches();
    return started;
  }

  absl::StatusOr<std::vector<RowToken>> DecodeToken(
      const std::function<absl::Status()>& may_go_on) override {
    if (absl::Status failure = group_->failure(); !failure.ok()) return failure;
    std::vector<RowToken> tokens;
    absl::Status drawn;
    absl::Status status = CatchStatus(absl::StrCat("engine ", spec_.name, ", generate"), [&] {
      const at::NoGradGuard no_grad;
      runner_.BeginPass("decode");
      drawn = generation_.Decode(runner_, generation_.Due(), &tokens);
      return absl::OkStatus();
    });
    if (status.ok()) status = AgreeOnPass();
    if (!status.ok()) group_->Abort(status);
    status.Update(drawn);  // this rank's own trouble: the pass was whole on all
    if (!status.ok()) generation_.End();
    CountCaches();
    if (!status.ok()) return status;
    return tokens;
  }

  int64_t unfinished() const override { return generation_.unfinished(); }
  int64_t cache_bytes() const override { return generation_.cache_bytes(); }

  void EndGeneration() override {
    generation_.End();
    CountCaches();
  }

  absl::Status Set(const EngineSettings& settings) override {
    absl::Status agreed = Agree(*group_, "set",
                                {absl::StrFormat("lr %.17g", settings.learning_rate),
                                 absl::StrCat("checks ", static_cast<int>(settings.checks)),
                                 absl::StrCat("timeout ", absl::FormatDuration(settings.timeout))});
    if (!agreed.ok()) return agreed;
    spec_.optimizer.learning_rate = settings.learning_rate;
    spec_.checks = settings.checks;
    spec_.timeout = settings.timeout;
    runner_.SetChecks(settings.checks);
    group_->SetTimeout(settings.timeout);
    return absl::OkStatus();
  }

  const EngineState& state() const override { return state_; }
  Group& group() override { return *group_; }
  std::vector<TraceSnapshot> traces() const override { return runner_.traces(); }

  MemoryUse memory() const override {
    MemoryUse use;
    use.weights_bytes = weights_bytes_;
    use.optimizer_bytes = optimizer_bytes_;
    const int64_t fixed = runner_.buffer_bytes();  // never shrinks
    use.buffers_bytes = fixed + caches_;
    use.peak_bytes = use.weights_bytes + use.optimizer_bytes + fixed + most_caches_;
    return use;
  }

  void Abort(const absl::Status& reason) override { group_->Abort(reason); }

 private:
  // Collective: this rank's rows of each micro-batch; none if no target counts. A rank that cannot
  // read its rows, or counts other `tokens` in those of the whole batch, fails the step on all,
  // before anything is changed: the trainer goes on.
  absl::StatusOr<std::vector<Batch>> LoadRows(const Dataset& data, const std::vector<int64_t>& rows,
                                              int64_t accumulate, int64_t tokens) {
    std::vector<Batch> batches;
    const absl::Status local = CatchStatus(absl::StrCat("rank ", group_->options().rank), [&] {
      for (int64_t i = 0; tokens > 0 && i < accumulate; ++i) {
        const absl::Span<const int64_t> part = SplitRows(rows, accumulate, i);
        batches.push_back(data.Load(DealRows(part, group_->size(), group_->index())));
      }
      return absl::OkStatus();
    });
    absl::Status status = Agree(*group_, "data",
                                {absl::StrCat("data position ", state_.data_position),
                                 absl::StrCat("counted targets ", tokens, " of the batch")},
                                local);
    if (!status.ok()) return status;
    return batches;
  }

  // Collective: the ranks gathered and reduced the same, and follow it from now on.
  absl::Status AgreeOnPass() {
    if (spec_.checks != CheckLevel::kOff) {
      absl::Status status = Agree(*group_, "trace", DescribeTrace(runner_.pass_trace()));
      if (!status.ok()) return status;
    }
    runner_.EndPass();
    return absl::OkStatus();
  }

  void CountCaches() {
    caches_ = generation_.cache_bytes();
    most_caches_ = std::max<int64_t>(most_caches_, caches_);
  }

  // Collective: forward and backward of one micro-batch, agreement on its trace. Adds this rank's
  // part of the loss to `loss`.
  absl::Status Pass(const Batch& batch, absl::string_view kind, bool accumulate, int64_t tokens,
                    double* loss) {
    absl::Status status = CatchStatus(absl::StrCat("engine ", spec_.name, ", train step"), [&] {
      runner_.BeginPass(kind, accumulate);
      const at::AutoGradMode grad(true);
      const at::Tensor part = model_->LossSum(runner_, batch).div(static_cast<double>(tokens));
      *loss += part.item<double>();
      const double scale = loss_scale();
      runner_.Backward(scale == 1 ? part : part.mul(scale));
      return absl::OkStatus();
    });
    return status.ok() ? AgreeOnPass() : status;
  }

  // Collective: the passes of all micro-batches, agreement, update. Each accumulation pattern has a
  // trace of its own: none throws away another's.
  absl::Status Passes(std::vector<Batch> batches, StepResult* result) {
    StepReport mine;
    const std::string kind =
        batches.size() == 1 ? "train" : absl::StrCat("train accumulate=", batches.size());
    absl::Status status;
    for (size_t i = 0; i < batches.size(); ++i) {
      status = Pass(batches[i], kind, /*accumulate=*/i > 0, result->tokens, &mine.loss);
      if (!status.ok()) return status;
      batches[i] = Batch();
    }
    for (const Unit& unit : model_->table().units()) {
      const double sum = SumOfSquares(runner_.gradient_shard(unit.id));
      mine.sum_of_squares += sum;
      if (mine.bad_unit < 0 && !std::isfinite(sum)) mine.bad_unit = unit.id;
    }
    status = Combine(mine, result);
    if (!status.ok()) return status;
    if (result->skipped) {
      NoteOverflow(result);
      return absl::OkStatus();
    }
    return CatchStatus(absl::StrCat("engine ", spec_.name, ", update"), [&] {
      Update(result->grad_norm);
      return absl::OkStatus();
    });
  }

  // Sums the reports of all ranks, in group order on every rank.
  absl::Status Combine(const StepReport& mine, StepResult* result) {
    const absl::StatusOr<std::vector<std::string>> reports = group_->Exchange(
        absl::string_view(reinterpret_cast<const char*>(&mine), sizeof(mine)), "step report");
    if (!reports.ok()) return reports.status();
    double sum_of_squares = 0;
    for (size_t i = 0; i < reports->size(); ++i) {
      StepReport report;
      if ((*reports)[i].size() != sizeof(report)) {
        return absl::InternalError("a rank sent a step report of another size");
      }
      std::memcpy(&report, (*reports)[i].data(), sizeof(report));
      result->loss += report.loss;
      sum_of_squares += report.sum_of_squares;
      if (report.bad_unit >= 0 && !result->skipped) {
        result->skipped = true;
        result->reason =
            absl::StrCat("non-finite gradient in ", model_->table().unit(report.bad_unit).name,
                         ", in the shard of rank ", group_->options().ranks[i]);
      }
    }
    result->grad_norm = std::sqrt(sum_of_squares) / loss_scale();
    return absl::OkStatus();
  }

  // What the gradients of the pass are larger by than those of the loss.
  double loss_scale() const { return state_.loss_scale.has_value() ? state_.loss_scale->value : 1; }

  // The same on every rank, as the reports are.
  void NoteOverflow(StepResult* result) {
    if (!state_.loss_scale.has_value()) return;
    absl::StrAppend(&result->reason, "; loss scale ", loss_scale());
    state_.loss_scale->Overflowed();
    absl::StrAppend(&result->reason, " -> ", loss_scale());
  }

  void Update(double norm) {
    const double clip = spec_.clip_norm > 0 ? std::min(1.0, spec_.clip_norm / (norm + 1e-6)) : 1.0;
    const double scale = clip / loss_scale();
    for (const Unit& unit : model_->table().units()) {
      at::Tensor& gradient = runner_.gradient_shard(unit.id);
      if (scale < 1.0) gradient.mul_(scale);
      ApplyUpdate(spec_.optimizer, state_.step + 1, gradient, &state_.units[unit.id]);
    }
    if (state_.loss_scale.has_value()) state_.loss_scale->Applied();
    ++state_.step;
    ++state_.weights_version;
  }

  EngineSpec spec_;  // Set changes the settings in it
  const Model* model_;
  EngineState state_;
  const std::unique_ptr<Group> group_;
  ShardedRunner runner_;
  Generation generation_;
  std::atomic<int64_t> caches_{0};       // bytes
  std::atomic<int64_t> most_caches_{0};  // of them, ever
  const int64_t weights_bytes_;
  const int64_t optimizer_bytes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Make(const EngineSpec& spec, const Model* model,
                                                       EngineState state,
                                                       std::unique_ptr<Group> group) {
  std::unique_ptr<Trainer> trainer;
  absl::Status status = CatchStatus(absl::StrCat("engine ", spec.name, ", create"), [&] {
    trainer = std::make_unique<ZeroTrainer>(spec, model, std::move(state), std::move(group));
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return trainer;
}

absl::Status LoadWeights(const ParamTable& table, WeightSource& source, EngineState* state,
                         const std::function<absl::Status(int64_t)>& progress) {
  int64_t bytes_read = 0;
  if (progress) {
    if (absl::Status status = progress(bytes_read); !status.ok()) return status;
  }
  for (const Unit& unit : table.units()) {
    UnitState& held = state->units[unit.id];
    for (const int id : unit.parameters) {
      const Parameter& parameter = table.parameter(id);
      const int64_t begin = std::max(held.interval.begin, parameter.offset);
      const int64_t end = std::min(held.interval.end, parameter.offset + parameter.numel);
      if (begin >= end) continue;
      // The master copy is what the source has in full; the weights are its rounding.
      const bool has_master = held.master.defined();
      const absl::StatusOr<at::Tensor> values =
          source.Read(id, begin - parameter.offset, end - parameter.offset,
                      has_master ? DType::kFp32 : table.dtype());
      if (!values.ok()) return values.status();
      const int64_t at = begin - held.interval.begin;
      if (has_master) held.master.narrow(0, at, end - begin).copy_(*values);
      held.weights.narrow(0, at, end - begin).copy_(*values);
      bytes_read += (end - begin) * DTypeBytes(table.dtype());
      if (!progress) continue;
      if (absl::Status status = progress(bytes_read); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace regroup
