// The control plane: accepts requests, starts operations, answers questions. No gRPC here.
#ifndef DAEMON_CONTROL_CONTROL_H_
#define DAEMON_CONTROL_CONTROL_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "daemon/control/cancellation.h"
#include "daemon/control/node_table.h"
#include "daemon/control/operation_context.h"
#include "daemon/control/request_log.h"
#include "daemon/control/restore.h"
#include "daemon/control/validate.h"
#include "daemon/node/rank_table.h"
#include "daemon/store/store.h"
#include "regroup/v1/control.pb.h"

namespace regroup {

struct ControlOptions {
  std::string node;
  int first_rank = 0;    // of this node
  RequestLimits limits;  // of this node: its number of ranks, its data roots
  OperationTiming timing;
  Store* store = nullptr;  // outlives Control; nullptr: all is forgotten with it
};

// Thread safe. What the calls mean, and their errors, stands in control.proto.
class Control {
 public:
  static constexpr size_t kMaxOperations = 256;  // that run or wait at a time, deletes aside

  // `ranks` outlives this and has this node's ranks. `killer` kills a worker and does not block.
  Control(const ControlOptions& options, RankTable* ranks, RankCommands::Killer killer);
  // Takes over what the store holds of an earlier start, before anything else: nodes, engines,
  // operations, requests. Engines are READY again once all of their ranks are found to hold them.
  // Errors: the store's, NodeTable::Restore's.
  absl::Status Restore();

  // Waits for all operations: call Shutdown, and end the workers, before.
  ~Control();

  // Accept a mutation: check it, start its operation and return that. They read the file system:
  // not for threads that must not block.
  absl::StatusOr<v1::Operation> CreateEngine(const v1::CreateEngineRequest& request);
  absl::StatusOr<v1::Operation> DeleteEngine(const v1::DeleteEngineRequest& request);
  absl::StatusOr<v1::Operation> RelayoutEngine(const v1::RelayoutEngineRequest& request);
  absl::StatusOr<v1::Operation> SyncEngine(const v1::SyncEngineRequest& request);
  absl::StatusOr<v1::Operation> ExportEngine(const v1::ExportEngineRequest& request);
  absl::StatusOr<v1::Operation> SetEngine(const v1::SetEngineRequest& request);
  absl::StatusOr<v1::Operation> CancelOperation(const v1::CancelOperationRequest& request);

  // Block until all is over. `accepted` gets the operation's id, before it has its turn; `emit`
  // each message; false from it, or the cancellation, ends it early.
  using Accepted = std::function<void(const std::string& operation)>;
  absl::Status Train(const v1::TrainRequest& request, std::shared_ptr<Cancellation> cancellation,
                     const Accepted& accepted,
                     const std::function<bool(const v1::TrainRecord&)>& emit);
  absl::Status Generate(const v1::GenerateRequest& request,
                        std::shared_ptr<Cancellation> cancellation, const Accepted& accepted,
                        const std::function<bool(const v1::GenerateResponse&)>& emit);

  // Questions: answered from memory, at once, whatever runs.
  v1::GetStatusResponse Status() const;
  absl::StatusOr<v1::Engine> DescribeEngine(const std::string& name) const;
  // Asks the engine's lead; `done` runs once, on any thread, within `timeout`.
  void TraceEngine(const v1::TraceEngineRequest& request, absl::Duration timeout,
                   std::function<void(absl::StatusOr<v1::EngineTrace>)> done) const;
  OperationTable& operations() { return context_->operations(); }
  NodeTable& nodes() { return nodes_; }

  // Whoever follows other nodes found a worker there that this daemon did not know, or had given
  // up: what it holds of engines that do not lie on it is dropped, before anything else is asked of
  // it. Does not block.
  void Attached(const WorkerRef& ref, const v1::WorkerState& state);

  // Runs `task`, which may block, on a thread of its own. Errors: as TaskGroup::Start's, e.g. once
  // Shutdown was called.
  absl::Status StartTask(std::function<void()> task) {
    return context_->tasks().Start(std::move(task));
  }

  // Where clients reach this daemon; shown by Status.
  void SetAddress(const std::string& address);

  // Accepts nothing more, asks all operations to end, and waits for them, at most `grace`: a step
  // that runs is finished. True if all ended.
  bool Shutdown(absl::Duration grace);

 private:
  using Check = absl::FunctionRef<absl::Status()>;
  using Accept = absl::FunctionRef<absl::StatusOr<std::string>()>;

  // Answers a request that came before; else accepts it. `check` runs first, and may wait for a
  // file system: other requests do not wait for it. `accept` starts the operation and does not
  // block.
  absl::StatusOr<v1::Operation> Once(const std::string& request_id,
                                     const google::protobuf::Message& request, Check check,
                                     Accept accept);
  // The same for a stream, which is not answered twice.
  absl::StatusOr<std::string> OnceAsStream(const std::string& request_id,
                                           const google::protobuf::Message& request, Check check,
                                           Accept accept);
  // The first answer to the request, as it is now; nullopt if it is new.
  absl::StatusOr<absl::optional<v1::Operation>> FirstAnswer(
      const std::string& request_id, const google::protobuf::Message& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(accept_mutex_);

  // What a request is checked against that lets workers on `ranks` open its paths: the ranks of all
  // nodes; this node's data roots if it has one of them. (Other nodes check against their own.)
  RequestLimits LimitsOn(absl::Span<const int> ranks) const;
  absl::Status CheckRoom() const;

  // control_restore.cc. Until the engine is READY or FAILED, or deleted; runs on its own thread.
  void FindRanksOf(uint64_t uid);
  std::vector<MemberReport> ReportsOf(const EngineRecord& engine);
  bool WasDecided(const v1::PendingMove& sync) const;
  void Carry(const EngineRecord& engine, const std::vector<MemberReport>& reports,
             const RestoreDecision& decision);
  // The engine, if something can still become of it: not FAILED, not DELETING. And if it has a role
  // that `kind` of operation is for.
  absl::StatusOr<EngineRecord> FindUsable(const std::string& name, absl::string_view kind) const;
  TicketQueue::Place TakeTurn(const std::vector<uint64_t>& engines);
  // Starts an operation that runs `body` on its own thread.
  absl::StatusOr<std::string> Start(OperationTable::Plan plan,
                                    std::function<absl::Status(OperationRun&)> body);

  const ControlOptions options_;
  const std::unique_ptr<OperationContext> context_;
  NodeTable nodes_;
  absl::Notification stopping_;
  std::atomic<bool> stop_said_{false};
  // Requests are accepted one at a time. Held while what is accepted is written to the store; never
  // while a worker, another node or a data root is asked.
  absl::Mutex accept_mutex_;
  RequestLog requests_ ABSL_GUARDED_BY(accept_mutex_);
  // The request that is being accepted: remembered before what it asks for begins.
  const std::string* accepted_id_ ABSL_GUARDED_BY(accept_mutex_) = nullptr;
  const google::protobuf::Message* accepted_request_ ABSL_GUARDED_BY(accept_mutex_) = nullptr;
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_CONTROL_H_
