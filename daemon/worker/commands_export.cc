// Export of an engine's weights as config.json + model.safetensors.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/worker/commands.h"
#include "engine/group/agreement.h"

namespace regroup {
namespace {

absl::StatusOr<std::unique_ptr<ExportWriter>> StartWriter(const HeldEngine& engine,
                                                          const std::string& directory) {
  return ExportWriter::Start(directory, engine.model->config_json, engine.table());
}

absl::Status WriteReplica(const HeldEngine& engine, ExportWriter* writer) {
  const EngineState& state = engine.inference->state();
  for (const Parameter& parameter : engine.table().parameters()) {
    const at::Tensor value = state.units[parameter.unit]
                                 .weights.narrow(0, parameter.offset, parameter.numel)
                                 .view(parameter.shape);
    if (absl::Status status = writer->Write(parameter.id, value); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Commands::ExportEngine(HeldEngine* engine, const v1::ExportEngine& request,
                                    v1::ExportEngineResult* result) {
  int64_t bytes = 0;
  if (engine->inference == nullptr) {
    absl::Status status = ExportTrainer(engine, request.directory(), &bytes);
    // A disk that is full leaves the engine as it was; a group that broke doesn't.
    if (!engine->trainer()->group().failure().ok()) engine->failure = status;
    if (!status.ok()) return status;
  } else if (engine->spec.layout.lead() == identity_.rank) {
    absl::StatusOr<std::unique_ptr<ExportWriter>> writer =
        StartWriter(*engine, request.directory());
    if (!writer.ok()) return writer.status();
    if (absl::Status status = WriteReplica(*engine, writer->get()); !status.ok()) return status;
    const absl::StatusOr<int64_t> written = (*writer)->Commit();
    if (!written.ok()) return written.status();
    bytes = *written;
  }
  result->set_bytes(bytes);
  return absl::OkStatus();
}

// Each step that only the lead can fail in ends with an agreement, so that no member waits for a
// lead that gave up, and none believes in a folder that is not there.
absl::Status Commands::ExportTrainer(HeldEngine* engine, const std::string& directory,
                                     int64_t* bytes) {
  const std::shared_ptr<Trainer> trainer = engine->trainer();
  absl::StatusOr<std::unique_ptr<ExportWriter>> writer = nullptr;
  if (engine->spec.layout.lead() == identity_.rank) writer = StartWriter(*engine, directory);
  if (absl::Status status = Agree(trainer->group(), "export", {directory}, writer.status());
      !status.ok()) {
    return status;
  }
  if (absl::Status status = trainer->GatherTo(writer->get()); !status.ok()) return status;
  absl::StatusOr<int64_t> written = 0;
  if (*writer != nullptr) written = (*writer)->Commit();
  if (absl::Status status = Agree(trainer->group(), "commit", {}, written.status()); !status.ok()) {
    return status;
  }
  *bytes = *written;
  return absl::OkStatus();
}

}  // namespace regroup
