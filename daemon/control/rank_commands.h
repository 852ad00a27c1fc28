// Runs one command on several ranks at once, and gathers what they answer.
#ifndef DAEMON_CONTROL_RANK_COMMANDS_H_
#define DAEMON_CONTROL_RANK_COMMANDS_H_

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "daemon/control/cancellation.h"
#include "daemon/control/ticket_queue.h"
#include "daemon/node/rank_table.h"
#include "regroup/v1/worker.pb.h"

namespace regroup {

struct RankStatus {
  int rank = 0;
  absl::Status status;
};

// The error of a command that failed on some ranks: a lost rank's before all, then a timeout, which
// names who did not come, then other UNAVAILABLE ones, then the rest in the order given;
// cancellations last. OK if all are.
absl::Status ChooseError(absl::Span<const RankStatus> statuses);

// Thread safe.
class RankCommands {
 public:
  struct Timing {
    absl::Duration command = absl::Hours(1);  // bounds what nothing else bounds
    absl::Duration abort_grace =
        absl::Seconds(2);                      // from a rank's error to the abort of the others
    absl::Duration stuck = absl::Seconds(60);  // from an abort to the kill of who does not return
    absl::Duration drop = absl::Seconds(60);   // for DropEngine, once it is the engine's turn
    absl::Duration local_margin = absl::Seconds(30);  // for local phases, beyond the timeout
    absl::Duration refresh = absl::Seconds(2);
    absl::Duration rendezvous_margin = absl::Seconds(5);  // beyond the engine's timeout
  };
  // Kills a worker that does not do what it is told. Does not block.
  using Killer = std::function<void(const WorkerRef& ref, const std::string& reason)>;

  RankCommands(RankTable* ranks, Timing timing, Killer killer);
  ~RankCommands();  // waits for drops under way

  // Whether to end it on all ranks when one fails: the ranks of a collective wait for each other.
  // Those that are not to blame get a moment to find out by themselves, unless a rank is lost.
  // kAbortIfBroken: only after an error that breaks the engine; others are agreed on.
  enum class OnError { kNothing, kAbort, kAbortIfBroken };
  struct Options {
    OnError on_error = OnError::kNothing;
    bool of_move = false;  // an abort, whoever asks for it, leaves the engine's own groups alone
    absl::Duration timeout = absl::ZeroDuration();  // of the calls; 0 = Timing.command
    bool abort_when_cancelled = false;              // else a command that runs is waited for
    std::vector<uint64_t>
        engines;  // that this works for: AbortRunning and KillRunning find it by them
    std::function<void(int64_t done, int64_t total)>
        progress;  // bytes over all ranks, a few times a second
  };
  struct Outcome {
    absl::Status status;               // ChooseError of all
    std::vector<RankStatus> statuses;  // of each member, in order
    // What they waited for was ended, or a rank is lost, did not answer, or says so: the engine
    // cannot go on. (A move that was ended breaks nothing.)
    bool engine_broken = false;
    std::vector<v1::CommandResult> results;  // of each member, in order; empty unless OK
  };

  // The right to run commands on these ranks. Blocks. Errors: the cancellation's.
  absl::StatusOr<TicketQueue::Ticket> TakeTicket(const std::vector<WorkerRef>& members,
                                                 Cancellation& cancellation);

  // Runs make(i) on members[i], for the engine `uid` (the source of a move). Blocks until every
  // member has answered or is lost. `ticket` covers the members. A worker that does not answer in
  // time is killed, and lost before this returns: it may still be at it.
  Outcome Run(const TicketQueue::Ticket& ticket, const std::vector<WorkerRef>& members,
              uint64_t uid, absl::FunctionRef<v1::Command(size_t)> make, const Options& options,
              Cancellation& cancellation);

  // Opens a meeting place on `lead`. Blocks, at most `timeout` and a margin.
  absl::StatusOr<v1::Rendezvous> OpenRendezvous(const WorkerRef& lead, uint64_t uid,
                                                int64_t attempt, absl::Duration timeout);

  // Tells each member that still lives to drop the engine, in its turn there, and kills those that
  // do not. Their turn comes before that of any command that is asked for later. `dropped` is
  // called once all have, on any thread.
  void DropAsync(const std::vector<WorkerRef>& members, uint64_t uid, const std::string& engine,
                 std::function<void()> dropped);
  // Tells each member that still lives, in its turn there, to do something local, which may have to
  // wait for what an earlier primary asked of it: nobody is killed for being late.
  void TellAsync(const std::vector<WorkerRef>& members, const v1::Command& command,
                 std::function<void()> told);

  // Kills that process, which does not do what it is told, and waits for its end, at most
  // Timing.stuck.
  void KillAndWait(const WorkerRef& member, const std::string& reason);

  // DropAsync; blocks until all have.
  void Drop(const std::vector<WorkerRef>& members, uint64_t uid, const std::string& engine);

  // Ends what the commands that run for the engine wait for.
  void AbortRunning(uint64_t engine, const std::string& reason);
  // Kills the members on which a command for the engine runs.
  void KillRunning(uint64_t engine, const std::string& reason);

  // Ends what waits on the member for the engine, or for its move only. Does not block.
  void AbortOn(const WorkerRef& member, uint64_t uid, bool move_only, const std::string& reason);

  // What each of the members says of itself now. Blocks, at most Timing.refresh.
  std::vector<absl::StatusOr<v1::WorkerState>> AskStates(const std::vector<WorkerRef>& members);

  // Asks the members what they hold, so that the rank table is up to date. Blocks, at most
  // Timing.refresh.
  void Refresh(const std::vector<WorkerRef>& members);

 private:
  struct Gathering;
  struct Running;

  // Who has not done it after `timeout` is killed for `kill_reason`, unless that is "".
  void Send(const std::vector<WorkerRef>& members, const v1::Command& command,
            absl::Duration timeout, const std::string& kill_reason, std::function<void()> told);
  void Kill(const WorkerRef& member, const std::string& reason);
  void Abort(const Running& running, const std::string& reason);
  void KillPending(const Running& running, const std::string& reason);
  void ReportProgress(const std::vector<WorkerRef>& members, uint64_t uid,
                      const Options& options) const;

  RankTable* const ranks_;
  const Timing timing_;
  const Killer killer_;
  TicketQueue tickets_;
  absl::Mutex mutex_;
  std::list<Running> running_ ABSL_GUARDED_BY(mutex_);
  int drops_ ABSL_GUARDED_BY(mutex_) = 0;  // calls of DropAsync that are not over
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_RANK_COMMANDS_H_
