// What operations are made of: the parts of the control plane, and one running operation's handle.
#ifndef DAEMON_CONTROL_OPERATION_CONTEXT_H_
#define DAEMON_CONTROL_OPERATION_CONTEXT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/control/cancellation.h"
#include "daemon/control/engine_registry.h"
#include "daemon/control/operation_table.h"
#include "daemon/control/rank_commands.h"
#include "daemon/control/task_group.h"
#include "daemon/control/ticket_queue.h"
#include "daemon/node/rank_table.h"
#include "daemon/store/store.h"

namespace regroup {

struct OperationTiming {
  absl::Duration ready_wait = absl::Seconds(30);  // for ranks that start, when an engine wants them
  // What runs on a deleted engine may end by itself, then it is aborted, and in the end its workers
  // are killed: late, as they may hold other engines.
  absl::Duration delete_cancel = absl::Seconds(5);
  absl::Duration delete_abort = absl::Seconds(30);
  absl::Duration generate_progress = absl::Milliseconds(200);  // between two messages
  RankCommands::Timing commands;
};

// `status` as the error of an operation on an engine: names it, and its detail says engine,
// generation and phase.
absl::Status EngineError(const absl::Status& status, const EngineRecord& engine,
                         absl::string_view phase);

// OK if READY; else FAILED_PRECONDITION saying how it is; UNAVAILABLE if it may get READY by
// itself, after a restart.
absl::Status CheckReady(const EngineRecord& engine);

// Thread safe. Owned by Control.
class OperationContext {
 public:
  OperationContext(RankTable* ranks, const OperationTiming& timing, RankCommands::Killer killer,
                   Store* store);

  const OperationTiming& timing() const { return timing_; }
  RankTable& ranks() { return *ranks_; }
  EngineRegistry& engines() { return engines_; }
  OperationTable& operations() { return operations_; }
  RankCommands& commands() { return commands_; }
  // By uid: one operation at a time on an engine.
  TicketQueue& engine_locks() { return engine_locks_; }
  TaskGroup& tasks() { return tasks_; }

  // READY or MOVING -> FAILED(reason); asks what runs on it to end, and frees its ranks: whatever
  // is asked of them later comes after that. Nothing if it is in another state. Does not block.
  void FailEngine(uint64_t uid, const absl::Status& reason);

  // FailEngine for each engine that the lost process held.
  void FailEnginesOn(const WorkerRef& lost, const std::string& how);

  // FailEngine if one of its members is gone: a death between two looks at the engine.
  void FailIfMemberLost(uint64_t uid);

 private:
  RankTable* const ranks_;
  const OperationTiming timing_;
  EngineRegistry engines_;
  OperationTable operations_;
  TicketQueue engine_locks_;
  RankCommands commands_;
  TaskGroup tasks_;  // last: its threads use the others
};

// One operation, seen from its own thread.
class OperationRun {
 public:
  // `turn` is the operation's place in context->engine_locks(), for all of `engines`.
  OperationRun(OperationContext* context, std::string id, std::vector<uint64_t> engines,
               TicketQueue::Place turn, std::shared_ptr<Cancellation> cancellation);

  OperationContext& context() { return *context_; }
  RankCommands& commands() { return context_->commands(); }
  EngineRegistry& engines() { return context_->engines(); }
  Cancellation& cancellation() { return *cancellation_; }
  // Why an operation ends whose messages nobody takes any more.
  absl::Status WhyUnheard() const;
  Cancellation& never() { return never_; }  // for what has to be done, cancelled or not

  void SetPhase(const std::string& phase);
  void SetProgress(int64_t bytes_done, int64_t bytes_total);
  void SetPeakBytes(int64_t bytes);
  void SetDetail(const std::string& text);
  const std::string& phase() const { return phase_; }

  const std::string& id() const { return id_; }

  // Within which a worker does what waits for nobody.
  absl::Duration LocalTimeout(const v1::EngineSpec& spec) const;

  // OK, or what has become of the engine that this operation leaves: why it is FAILED.
  absl::Status FailureOf(uint64_t uid);

  // Options of a command for this operation's engines.
  RankCommands::Options Options(RankCommands::OnError on_error) const;

  // Takes a ticket and runs one phase under it. Cancelled before its turn: the cancellation's
  // error.
  RankCommands::Outcome RunPhase(const std::vector<WorkerRef>& members, uint64_t uid,
                                 absl::FunctionRef<v1::Command(size_t)> make,
                                 const RankCommands::Options& options, Cancellation& cancellation);

  // Waits for the engine's turn; `activity` shows while the lock is held. Errors: the
  // cancellation's; NOT_FOUND if an engine is gone by then.
  class Lock {
   public:
    Lock(OperationContext* context, std::vector<uint64_t> uids, TicketQueue::Ticket ticket)
        : context_(context), uids_(std::move(uids)), ticket_(std::move(ticket)) {}
    Lock(Lock&&) = default;
    ~Lock();

   private:
    OperationContext* context_;
    std::vector<uint64_t> uids_;
    TicketQueue::Ticket ticket_;  // not held once moved from
  };
  absl::StatusOr<Lock> LockEngines(const std::string& activity);

  // True once it is the engine's turn.
  bool WaitForTurn(absl::Duration timeout) { return turn_.WaitFor(timeout); }

  // Brings what is known of the engine's memory and groups up to date.
  void RefreshEngine(uint64_t uid);

 private:
  OperationContext* const context_;
  const std::string id_;
  const std::vector<uint64_t> engines_;
  TicketQueue::Place turn_;
  const std::shared_ptr<Cancellation> cancellation_;
  Cancellation never_;
  std::string phase_;
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_OPERATION_CONTEXT_H_
