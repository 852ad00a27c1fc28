#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "daemon/control/operations.h"

namespace regroup {
namespace {

// One rank's part of a request.
struct Part {
  WorkerRef member;
  int first_row = 0;
  int rows = 0;
  int64_t unfinished = 0;
};

// Rank d of D takes the rows [floor(d*b/D), floor((d+1)*b/D)). Ranks without a row take part only
// if they are `needed`.
std::vector<Part> Deal(const std::vector<WorkerRef>& members, int64_t rows, bool needed) {
  std::vector<Part> parts;
  const int64_t count = static_cast<int64_t>(members.size());
  for (int64_t d = 0; d < count; ++d) {
    const int64_t first = d * rows / count;
    const int64_t end = (d + 1) * rows / count;
    if (first == end && !needed) continue;
    parts.push_back(
        {members[d], static_cast<int>(first), static_cast<int>(end - first), end - first});
  }
  return parts;
}

std::vector<WorkerRef> MembersOf(const std::vector<Part*>& parts) {
  std::vector<WorkerRef> members;
  members.reserve(parts.size());
  for (const Part* part : parts) members.push_back(part->member);
  return members;
}

// A generation under way. The ranks of an inference engine do not wait for each other. Those of a
// trainer step together: each is asked for each token until the last row of all is finished.
class Generation {
 public:
  Generation(OperationRun& run, const EngineRecord& engine, const v1::GenerateRequest& request)
      : run_(run),
        engine_(engine),
        request_(request),
        together_(engine.spec.role() == v1::ROLE_TRAIN) {
    parts_ = Deal(engine.members, request.prompts_size(), together_);
    outputs_.resize(request.prompts_size());
    for (v1::Output& output : outputs_) output.set_weights_version(engine.weights_version);
  }

  absl::Status Start() {
    const std::vector<Part*> parts = Parts();
    return run_
        .RunPhase(
            MembersOf(parts), engine_.uid, [&](size_t i) { return StartCommand(*parts[i]); },
            run_.Options(RankCommands::OnError::kNothing), run_.cancellation())
        .status;
  }

  // One more token for each unfinished row. The cancellation's error: nothing was run.
  absl::Status Decode() {
    std::vector<Part*> parts;
    for (Part& part : parts_) {
      if (together_ || part.unfinished > 0) parts.push_back(&part);
    }
    const RankCommands::Outcome outcome = run_.RunPhase(
        MembersOf(parts), engine_.uid,
        [](size_t) {
          v1::Command command;
          command.mutable_decode_token();
          return command;
        },
        run_.Options(together_ ? RankCommands::OnError::kAbortIfBroken
                               : RankCommands::OnError::kNothing),
        run_.cancellation());
    if (together_ && outcome.engine_broken) {
      run_.context().FailEngine(engine_.uid, outcome.status);
    }
    if (!outcome.status.ok()) return outcome.status;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (absl::Status status = Take(*parts[i], outcome.results[i].decode_token()); !status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }

  // Frees the ranks' caches, cancelled or not.
  void End() {
    const std::vector<Part*> parts = Parts();
    RankCommands::Options options = run_.Options(RankCommands::OnError::kNothing);
    options.timeout = run_.LocalTimeout(engine_.spec);
    const RankCommands::Outcome ignored = run_.RunPhase(
        MembersOf(parts), engine_.uid,
        [](size_t) {
          v1::Command command;
          command.mutable_end_generation();
          return command;
        },
        options, run_.never());
  }

  bool finished() const {
    for (const Part& part : parts_) {
      if (part.unfinished > 0) return false;
    }
    return true;
  }

  v1::GenerateResponse Progress() const {
    v1::GenerateResponse response;
    response.set_tokens_done(tokens_done_);
    response.set_rows_done(rows_done_);
    return response;
  }

  v1::GenerateResponse Result() const {
    v1::GenerateResponse response = Progress();
    response.set_done(true);
    for (const v1::Output& output : outputs_) {
      v1::Output& added = *response.add_outputs();
      added = output;
      if (added.finish_reason() == v1::FINISH_REASON_UNSPECIFIED) {
        added.set_finish_reason(v1::FINISH_REASON_CANCELLED);
      }
    }
    return response;
  }

 private:
  std::vector<Part*> Parts() {
    std::vector<Part*> parts;
    for (Part& part : parts_) parts.push_back(&part);
    return parts;
  }

  v1::Command StartCommand(const Part& part) const {
    v1::Command command;
    v1::StartGeneration& start = *command.mutable_start_generation();
    for (int row = part.first_row; row < part.first_row + part.rows; ++row) {
      v1::Row& added = *start.add_rows();
      added.set_row(row);
      *added.mutable_tokens() = request_.prompts(row).tokens();
    }
    start.set_max_tokens(request_.max_tokens());
    start.set_temperature(request_.temperature());
    start.set_top_p(request_.top_p());
    start.set_top_k(request_.top_k());
    start.set_seed(request_.seed());
    *start.mutable_stop_tokens() = request_.stop_tokens();
    return command;
  }

  absl::Status Take(Part& part, const v1::DecodeTokenResult& result) {
    for (const v1::RowToken& token : result.tokens()) {
      if (token.row() < part.first_row || token.row() >= part.first_row + part.rows) {
        return absl::InternalError("a worker answered for a row that it was not given");
      }
      v1::Output& output = outputs_[token.row()];
      output.add_tokens(token.token());
      output.add_logprobs(token.logprob());
      output.set_weights_version(result.weights_version());
      output.set_finish_reason(token.finish_reason());
      ++tokens_done_;
      if (token.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) ++rows_done_;
    }
    part.unfinished = result.unfinished();
    return absl::OkStatus();
  }

  OperationRun& run_;
  const EngineRecord& engine_;
  const v1::GenerateRequest& request_;
  const bool together_;
  std::vector<Part> parts_;
  std::vector<v1::Output> outputs_;
  int64_t tokens_done_ = 0;
  int64_t rows_done_ = 0;
};

}  // namespace

absl::Status RunGenerate(OperationRun& run, uint64_t uid, const v1::GenerateRequest& request,
                         const std::function<bool(const v1::GenerateResponse&)>& emit) {
  const absl::StatusOr<OperationRun::Lock> lock = run.LockEngines("generate");
  if (!lock.ok()) return lock.status();
  const EngineRecord engine = *run.engines().Get(uid);
  if (absl::Status status = CheckReady(engine); !status.ok()) return status;

  Generation generation(run, engine, request);
  run.SetPhase("prefill");
  absl::Status status = generation.Start();
  if (status.ok()) run.SetPhase("decode");
  absl::Time next_progress = absl::Now() + run.context().timing().generate_progress;
  while (status.ok() && !generation.finished()) {
    status = generation.Decode();
    if (status.ok() && absl::Now() >= next_progress) {
      next_progress = absl::Now() + run.context().timing().generate_progress;
      if (!emit(generation.Progress())) status = run.WhyUnheard();
    }
  }
  generation.End();
  // Cancelled: what there is, is the answer, and if by hand, a good one. A client that is gone gets
  // nothing.
  const bool cancelled = absl::IsCancelled(status) &&
                         absl::IsCancelled(run.cancellation().status()) &&
                         !run.cancellation().cancelled_by(CancelledBy::kClient);
  if (cancelled) {
    run.SetDetail(std::string(run.cancellation().status().message()));
    status = run.cancellation().cancelled_by(CancelledBy::kRequest) ? absl::OkStatus()
                                                                    : run.cancellation().status();
  }
  if ((status.ok() || cancelled) && !emit(generation.Result()) && status.ok()) {
    status = run.WhyUnheard();
  }
  run.RefreshEngine(uid);
  return EngineError(status, engine, run.phase());
}

}  // namespace regroup
