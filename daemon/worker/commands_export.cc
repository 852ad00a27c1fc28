// Export of an engine's weights as config.json + model.safetensors.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/worker/commands.h"
#include "engine/group/agreement.h"

namespace regroup {
namespace {

// Counts what was written as the engine's progress, and stops when the engine is aborted.
class CountingWriter : public ExportWriter {
 public:
  // `engine` outlives the writer.
  CountingWriter(std::unique_ptr<ExportWriter> writer, HeldEngine* engine)
      : writer_(std::move(writer)), engine_(engine) {
    engine->bytes_total = engine->table().total_numel() * DTypeBytes(engine->table().dtype());
  }

  absl::Status Write(int id, const at::Tensor& value) override {
    if (absl::Status aborted = engine_->aborted(); !aborted.ok()) return aborted;
    if (absl::Status status = writer_->Write(id, value); !status.ok()) return status;
    engine_->bytes_done += static_cast<int64_t>(value.nbytes());
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Commit() override { return writer_->Commit(); }

 private:
  const std::unique_ptr<ExportWriter> writer_;
  HeldEngine* const engine_;
};

absl::StatusOr<std::unique_ptr<ExportWriter>> StartWriter(HeldEngine* engine,
                                                          const std::string& directory) {
  absl::StatusOr<std::unique_ptr<ExportWriter>> writer =
      ExportWriter::Start(directory, engine->model->config_json, engine->table());
  if (!writer.ok()) return writer.status();
  return std::make_unique<CountingWriter>(*std::move(writer), engine);
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
    if (!status.ok()) return status;
  } else if (engine->spec.layout.lead() == identity_.rank) {
    absl::StatusOr<std::unique_ptr<ExportWriter>> writer = StartWriter(engine, request.directory());
    if (!writer.ok()) return writer.status();
    if (absl::Status status = WriteReplica(*engine, writer->get()); !status.ok()) return status;
    const absl::StatusOr<int64_t> written = (*writer)->Commit();
    if (!written.ok()) return written.status();
    bytes = *written;
  }
  result->set_bytes(bytes);
  return absl::OkStatus();
}

// Until the last unit is gathered, each step that only the lead can fail in ends with an agreement,
// so that no member waits for a lead that gave up. The commit, which may take long, is the lead's
// alone: whoever asked waits for the lead's answer.
absl::Status Commands::ExportTrainer(HeldEngine* engine, const std::string& directory,
                                     int64_t* bytes) {
  const std::shared_ptr<Trainer> trainer = engine->trainer();
  absl::StatusOr<std::unique_ptr<ExportWriter>> writer = nullptr;
  if (engine->spec.layout.lead() == identity_.rank) writer = StartWriter(engine, directory);
  if (absl::Status status = Agree(trainer->group(), "export", {}, writer.status()); !status.ok()) {
    return status;
  }
  if (absl::Status status = trainer->GatherTo(writer->get()); !status.ok()) return status;
  if (*writer == nullptr) return absl::OkStatus();
  const absl::StatusOr<int64_t> written = (*writer)->Commit();
  if (!written.ok()) return written.status();
  *bytes = *written;
  return absl::OkStatus();
}

}  // namespace regroup
