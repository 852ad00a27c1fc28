// Training: the check of the data that steps will draw, and the steps.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/worker/commands.h"
#include "daemon/worker/memory.h"
#include "daemon/worker/proto_convert.h"
#include "engine/group/comm_status.h"

namespace regroup {
namespace {

// The daemon's own limits.
constexpr int64_t kMaxBatch = 65536;
constexpr int64_t kMaxSteps = 1'000'000'000;

absl::Status CheckNumber(absl::string_view flag, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, "=", value, "; allowed: 1 to ", most));
}

// Refuses a step that can't fit: the machine would end the worker in the middle of it.
absl::Status AdmitStep(const HeldEngine& engine, const v1::CheckTraining& request, int rank) {
  const int64_t ranks = engine.spec.layout.size();
  const int64_t parts = std::max<int64_t>(request.accumulate(), 1);
  const int64_t of_part = (request.batch() + parts - 1) / parts;
  const int64_t rows = (of_part + ranks - 1) / ranks;
  const Model& model = *engine.model->model;
  const int64_t seq = std::max<int64_t>(request.seq(), 1);
  const int64_t activations = engine.spec.recompute ? model.RecomputedActivationBytes(rows, seq)
                                                    : model.ActivationBytes(rows, seq);
  const int64_t needed = StepBytes(model.table(), engine.spec.layout, activations, parts);
  return AdmitMemory(
      absl::StrCat("a step of engine ", engine.spec.name, " with --batch=", request.batch(),
                   request.seq() > 0 ? absl::StrCat(" and --seq=", request.seq()) : "",
                   parts > 1 ? absl::StrCat(" and --accumulate=", parts) : "", " (", rows,
                   " rows at once on rank ", rank, ")"),
      needed, AwaitMemoryBytes(needed));
}

}  // namespace

absl::Status Commands::CheckTraining(HeldEngine* engine, const v1::CheckTraining& request,
                                     v1::CheckTrainingResult* result) {
  if (absl::Status status = CheckNumber("--steps", request.steps(), kMaxSteps); !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckNumber("--batch", request.batch(), kMaxBatch); !status.ok()) {
    return status;
  }
  if (request.accumulate() < 0 || request.accumulate() > request.batch()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--accumulate=", request.accumulate(), "; allowed: 1 to ", request.batch(), " (--batch)"));
  }
  absl::StatusOr<std::unique_ptr<Dataset>> data =
      Dataset::Open(request.data(), request.seq(), engine->model->model->limits());
  if (!data.ok()) return data.status();
  if (absl::Status fits = AdmitStep(*engine, request, identity_.rank); !fits.ok()) return fits;
  const int64_t rows = (*data)->rows();
  const int64_t position = engine->trainer()->state().data_position;
  const auto first = static_cast<int64_t>(static_cast<__int128>(position) * request.batch() % rows);
  const int64_t drawn = static_cast<int64_t>(
      std::min<__int128>(static_cast<__int128>(request.steps()) * request.batch(), rows));
  if (absl::Status status = (*data)->Check(first, drawn); !status.ok()) return status;
  result->set_digest((*data)->digest());
  engine->data = *std::move(data);
  engine->batch = request.batch();
  engine->accumulate = std::max<int64_t>(request.accumulate(), 1);
  result->set_rows(rows);
  return absl::OkStatus();
}

absl::Status Commands::TrainStep(HeldEngine* engine, v1::TrainStepResult* result) {
  if (engine->data == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("engine ", engine->spec.name, ": no data was checked before this step"));
  }
  const absl::Time start = absl::Now();
  return CatchStatus(
      absl::StrCat("engine ", engine->spec.name, ", rank ", identity_.rank, ", step"), [&] {
        const absl::StatusOr<StepResult> step =
            engine->trainer()->Step(*engine->data, engine->batch, engine->accumulate);
        if (!step.ok()) return step.status();
        *result->mutable_record() =
            RecordToProto(*step, absl::ToDoubleSeconds(absl::Now() - start));
        result->set_weights_version(step->weights_version);
        return absl::OkStatus();
      });
}

}  // namespace regroup
