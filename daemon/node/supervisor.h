// Keeps one worker process per rank of this node: starts them, watches them, replaces those that
// end.
#ifndef DAEMON_NODE_SUPERVISOR_H_
#define DAEMON_NODE_SUPERVISOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/node/fd.h"
#include "daemon/node/log_tail.h"
#include "daemon/node/private_dir.h"
#include "daemon/node/rank_table.h"
#include "daemon/node/worker_end.h"
#include "daemon/node/worker_process.h"

namespace regroup {

struct SupervisorOptions {
  int ranks = 0;
  int first_rank = 0;
  std::string worker_binary;  // absolute path
  std::string device = "cpu";
  std::string host = "127.0.0.1";  // at which workers reach each other
  int signal_fd = -1;              // a signalfd to watch, not owned; -1 = none

  absl::Duration health_interval = absl::Milliseconds(500);
  absl::Duration hang_timeout = absl::Seconds(10);   // a ready worker silent for so long is killed
  absl::Duration start_timeout = absl::Seconds(60);  // one that does not get ready is killed, too
  absl::Duration min_backoff = absl::Milliseconds(200);  // from a death to the next start; doubles
  absl::Duration max_backoff = absl::Seconds(30);        // when a worker ends soon after its start
  absl::Duration settled = absl::Seconds(20);            // after which it does not count as soon
  int max_first_failures = 3;  // of one rank before all were ready once: then Run gives up
};

// Run does all the work, on the thread that calls it, which must be the main thread: a worker
// that does not follow its daemon yet is killed when the thread that started it ends.
class Supervisor {
 public:
  struct Hooks {
    std::function<void()> all_ready;     // once, when every rank is READY for the first time
    std::function<void(int)> on_signal;  // a signal arrived on signal_fd
  };

  // Makes the private folder of the workers' sockets, and removes those that killed daemons left.
  // `table` outlives the supervisor and has the ranks. Errors: INTERNAL, naming the
  // folder.
  static absl::StatusOr<std::unique_ptr<Supervisor>> Make(const SupervisorOptions& options,
                                                          RankTable* table);
  ~Supervisor();

  // Starts the workers and supervises them until Stop; then kills and reaps them all and removes
  // the sockets. Errors: INTERNAL (a worker cannot be started at all, or ended max_first_failures
  // times before it was ever ready), saying how and what it wrote last.
  absl::Status Run(const Hooks& hooks);

  // Any thread.
  void Stop();

  // Kills that process, if it still runs; its end is reported as "REASON and was killed by
  // SIGKILL". Any thread.
  void Kill(const WorkerRef& ref, const std::string& reason);

  const std::string& socket_folder() const;

 private:
  class Inbox;

  struct Slot {
    int rank = 0;
    std::unique_ptr<WorkerProcess> process;  // nullptr between a death and the next start
    std::shared_ptr<WorkerClient> client;
    int pid = 0;
    std::string socket_path;
    bool ready = false;
    bool asked = false;        // a GetState is under way
    bool output_open = false;  // the process has not closed its stdout and stderr
    absl::Time started;
    absl::Time answered;
    absl::Time ask_at;
    absl::Time start_at;  // if there is no process
    int quick_ends = 0;   // in a row
    std::string kill_reason;
    LogTail tail;
  };

  Supervisor(const SupervisorOptions& options, RankTable* table, PrivateDir folder,
             Fd lifeline_read, Fd lifeline_write);

  // Of a rank of this node.
  Slot& SlotOf(int rank) { return slots_[rank - options_.first_rank]; }

  absl::Status Start(Slot& slot, absl::Time now);
  void Ask(Slot& slot, absl::Time now);
  void ForgiveOwnPause(absl::Time now);
  void TakeAnswers(absl::Time now);
  void KillSlot(Slot& slot, const std::string& reason);
  void ReadOutput(Slot& slot);
  // The process ended: reports it and plans the next start.
  absl::Status Ended(Slot& slot, WorkerProcess::Exit exit, absl::Time now);
  // Starts, asks and kills what is due; returns when to look again.
  absl::Status DoWhatIsDue(absl::Time now, absl::Time* next);
  void Wait(absl::Time until, const Hooks& hooks);
  void ReportReady(const Hooks& hooks);
  void KillAll();

  const SupervisorOptions options_;
  RankTable* const table_;
  PrivateDir folder_;
  Fd lifeline_read_;   // inherited by workers
  Fd lifeline_write_;  // workers end when its last copy is closed: with this process
  std::shared_ptr<Inbox> inbox_;
  std::vector<Slot> slots_;
  bool were_all_ready_ = false;
  absl::Time looked_;  // when Run last went round
};

}  // namespace regroup

#endif  // DAEMON_NODE_SUPERVISOR_H_
