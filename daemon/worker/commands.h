// What a worker does when its daemon says so: the logic behind the Worker service, without gRPC.
#ifndef DAEMON_WORKER_COMMANDS_H_
#define DAEMON_WORKER_COMMANDS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/worker/engine_table.h"
#include "regroup/v1/worker.pb.h"

namespace regroup {

struct WorkerIdentity {
  int rank = 0;
  uint64_t incarnation = 0;
  std::string host;  // the address at which other ranks reach this one
};

// Used by the executor thread only. What each command means, and its errors: worker.proto.
class Commands {
 public:
  Commands(WorkerIdentity identity, EngineTable* table);

  // Runs one command. Errors carry regroup.v1.ErrorDetail.
  absl::StatusOr<v1::CommandResult> Run(const v1::Command& command);

 private:
  absl::Status Dispatch(const v1::Command& command, v1::CommandResult* result);

  // After a command failed with `status`: whether its engine can only be dropped, because its group
  // broke.
  bool NoteFailure(uint64_t uid, const absl::Status& status);

  // The engine, ready for commands. Errors: NOT_FOUND, FAILED_PRECONDITION (it failed or was never
  // formed).
  absl::StatusOr<std::shared_ptr<HeldEngine>> Formed(uint64_t uid) const;
  absl::StatusOr<std::shared_ptr<HeldEngine>> FormedTrainer(uint64_t uid) const;
  absl::StatusOr<std::shared_ptr<HeldEngine>> FormedInference(uint64_t uid) const;
  // Of either role, while no move holds its state.
  absl::StatusOr<std::shared_ptr<HeldEngine>> FormedIdle(uint64_t uid) const;

  // After a command: tells other threads how far each engine is now.
  void UpdateStandings() const;

  // FAILED_PRECONDITION while a move holds the engine's state.
  absl::Status CheckNotMoving(const HeldEngine& engine) const;

  // commands_create.cc
  absl::Status PrepareEngine(uint64_t uid, const v1::PrepareEngine& request,
                             v1::PrepareEngineResult* result);
  absl::Status FormEngine(uint64_t uid, const v1::FormEngine& request,
                          v1::FormEngineResult* result);
  absl::Status BuildEngine(HeldEngine* engine, EngineState state, std::unique_ptr<Group> group);
  absl::Status DropEngine(uint64_t uid);

  absl::Status SetSettings(HeldEngine* engine, const v1::SetSettings& request);

  // commands_train.cc
  absl::Status CheckTraining(HeldEngine* engine, const v1::CheckTraining& request,
                             v1::CheckTrainingResult* result);
  absl::Status TrainStep(HeldEngine* engine, v1::TrainStepResult* result);

  // commands_export.cc
  absl::Status ExportEngine(HeldEngine* engine, const v1::ExportEngine& request,
                            v1::ExportEngineResult* result);
  absl::Status ExportTrainer(HeldEngine* engine, const std::string& directory, int64_t* bytes);

  // commands_move.cc
  absl::Status PrepareMove(uint64_t uid, const v1::PrepareMove& request,
                           v1::PrepareMoveResult* result);
  absl::Status AgreeMove(uint64_t uid, const v1::AgreeMove& request);
  absl::Status RunMove(uint64_t uid, v1::RunMoveResult* result);
  absl::Status StageState(PendingMove* pending, const HeldEngine& source, EngineState state);
  absl::Status CommitMove(uint64_t uid);
  absl::Status RollBackMove(uint64_t uid);
  absl::StatusOr<std::shared_ptr<HeldEngine>> SourceOfMove(const EngineSpec& source,
                                                           const v1::PrepareMove& request);

  // commands_generate.cc
  absl::Status StartGeneration(HeldEngine* engine, const v1::StartGeneration& request);
  absl::Status DecodeToken(HeldEngine* engine, v1::DecodeTokenResult* result);
  absl::Status EndGeneration(HeldEngine* engine);

  // Collective over `ranks`. Ends at once when the engine is aborted.
  absl::StatusOr<std::unique_ptr<Group>> FormGroup(HeldEngine* engine, absl::string_view name,
                                                   const std::vector<int>& ranks,
                                                   const v1::Rendezvous& rendezvous) const;

  const WorkerIdentity identity_;
  EngineTable* const table_;
};

}  // namespace regroup

#endif  // DAEMON_WORKER_COMMANDS_H_
