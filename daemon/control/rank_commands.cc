#include "daemon/control/rank_commands.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/types/optional.h"
#include "proto/rpc_status.h"
#include "spdlog/spdlog.h"

namespace regroup {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(200);
constexpr absl::Duration kAbortTimeout = absl::Seconds(5);

// Whether the rank itself is lost; a rank may also report that it lost another one.
bool IsLost(const RankStatus& answer) {
  const auto detail = DetailOf(answer.status);
  return detail.has_value() && detail->reason() == v1::ERROR_REASON_RANK_LOST &&
         detail->ranks_size() == 1 && detail->ranks(0) == answer.rank;
}

// Smaller is more telling: who is lost, then a rank's own trouble, then what it did to the others:
// the time limit names who kept a rank waiting, a closed connection only who gave up first.
int Precedence(const RankStatus& answer) {
  if (answer.status.ok()) return 5;
  if (IsLost(answer)) return 0;
  if (absl::IsDeadlineExceeded(answer.status)) return 2;
  if (absl::IsUnavailable(answer.status)) return 3;
  return absl::IsCancelled(answer.status) ? 4 : 1;
}

// A worker's own errors carry a detail; others are of the call itself.
bool IsOfCall(const absl::Status& status) { return !status.ok() && !DetailOf(status).has_value(); }

// Whether the engine cannot go on after it.
bool IsBroken(const RankStatus& answer) {
  if (answer.status.ok()) return false;
  const auto detail = DetailOf(answer.status);
  return !detail.has_value() || detail->engine_broken() || IsLost(answer);
}

std::vector<int64_t> KeysOf(const std::vector<WorkerRef>& members) {
  std::vector<int64_t> keys;
  keys.reserve(members.size());
  for (const WorkerRef& member : members) keys.push_back(member.rank);
  return keys;
}

}  // namespace

absl::Status ChooseError(absl::Span<const RankStatus> statuses) {
  const auto chosen = std::min_element(
      statuses.begin(), statuses.end(),
      [](const RankStatus& a, const RankStatus& b) { return Precedence(a) < Precedence(b); });
  return chosen == statuses.end() ? absl::OkStatus() : chosen->status;
}

// The answers of one command. Shared with callbacks.
struct RankCommands::Gathering {
  explicit Gathering(std::vector<WorkerRef> asked)
      : members(std::move(asked)), answers(members.size()), pending(members.size()) {}

  const std::vector<WorkerRef> members;
  absl::Mutex mutex;
  absl::CondVar changed;
  std::vector<absl::optional<absl::StatusOr<v1::CommandResult>>> answers ABSL_GUARDED_BY(mutex);
  size_t pending ABSL_GUARDED_BY(mutex);
  absl::Time first_error ABSL_GUARDED_BY(mutex) = absl::InfiniteFuture();
  absl::Time first_broken ABSL_GUARDED_BY(mutex) = absl::InfiniteFuture();
  bool rank_lost ABSL_GUARDED_BY(mutex) = false;

  void Put(size_t i, absl::StatusOr<v1::CommandResult> answer) {
    absl::MutexLock lock(&mutex);
    if (!answer.ok()) {
      first_error = std::min(first_error, absl::Now());
      const RankStatus status{members[i].rank, answer.status()};
      if (IsBroken(status)) first_broken = std::min(first_broken, absl::Now());
      rank_lost = rank_lost || IsLost(status);
    }
    answers[i] = std::move(answer);
    --pending;
    changed.SignalAll();
  }

  std::vector<WorkerRef> Pending() {
    absl::MutexLock lock(&mutex);
    std::vector<WorkerRef> result;
    for (size_t i = 0; i < answers.size(); ++i) {
      if (!answers[i].has_value()) result.push_back(members[i]);
    }
    return result;
  }

  // Of the answers that are there.
  std::vector<RankStatus> Statuses() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::vector<RankStatus> statuses;
    for (size_t i = 0; i < answers.size(); ++i) {
      if (answers[i].has_value()) statuses.push_back({members[i].rank, answers[i]->status()});
    }
    return statuses;
  }
};

struct RankCommands::Running {
  uint64_t uid = 0;
  std::vector<uint64_t> engines;
  bool move_only = false;
  std::shared_ptr<Gathering> gathering;
};

RankCommands::RankCommands(RankTable* ranks, Timing timing, Killer killer)
    : ranks_(ranks), timing_(timing), killer_(std::move(killer)) {}

RankCommands::~RankCommands() {
  absl::MutexLock lock(&mutex_);
  const auto over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return drops_ == 0; };
  mutex_.Await(absl::Condition(&over));
}

absl::StatusOr<TicketQueue::Ticket> RankCommands::TakeTicket(const std::vector<WorkerRef>& members,
                                                             Cancellation& cancellation) {
  return tickets_.Acquire(KeysOf(members), cancellation);
}

void RankCommands::Kill(const WorkerRef& member, const std::string& reason) {
  spdlog::warn("rank {}: it {}; killing it", member.rank, reason);
  killer_(member, reason);
}

void RankCommands::KillAndWait(const WorkerRef& member, const std::string& reason) {
  if (!ranks_->IsAlive(member)) return;
  Kill(member, reason);
  ranks_->AwaitLost(member, absl::Now() + timing_.stuck);
}

// Also to those that have answered: the meeting place of the others may be theirs.
void RankCommands::Abort(const Running& running, const std::string& reason) {
  spdlog::info("ending {} of engine {}: {}",
               running.move_only ? "the move" : "what runs on all ranks", running.uid, reason);
  for (const WorkerRef& member : running.gathering->members) {
    AbortOn(member, running.uid, running.move_only, reason);
  }
}

void RankCommands::KillPending(const Running& running, const std::string& reason) {
  for (const WorkerRef& member : running.gathering->Pending()) Kill(member, reason);
}

void RankCommands::ReportProgress(const std::vector<WorkerRef>& members, uint64_t uid,
                                  const Options& options) const {
  int64_t done = 0;
  int64_t total = 0;
  for (const WorkerRef& member : members) {
    const auto held = ranks_->Held(member, uid);
    if (!held.has_value()) continue;
    done += held->bytes_done();
    total += held->bytes_total();
  }
  if (total > 0) options.progress(done, total);
}

RankCommands::Outcome RankCommands::Run(const TicketQueue::Ticket& ticket,
                                        const std::vector<WorkerRef>& members, uint64_t uid,
                                        absl::FunctionRef<v1::Command(size_t)> make,
                                        const Options& options, Cancellation& cancellation) {
  auto gathering = std::make_shared<Gathering>(members);
  std::list<Running>::iterator entry;
  {
    absl::MutexLock lock(&mutex_);
    entry = running_.insert(running_.end(), {uid, options.engines, options.of_move, gathering});
  }
  const Running running = *entry;
  const absl::Duration timeout =
      options.timeout > absl::ZeroDuration() ? options.timeout : timing_.command;
  for (size_t i = 0; i < members.size(); ++i) {
    const auto client = ranks_->Find(members[i]);
    if (!client.ok()) {
      gathering->Put(i, client.status());
      continue;
    }
    v1::Command command = make(i);
    command.set_engine_uid(uid);
    (*client)->Execute(std::move(command), timeout,
                       [gathering, i](absl::StatusOr<v1::CommandResult> answer) {
                         gathering->Put(i, std::move(answer));
                       });
  }

  const Cancellation::Hook hook(cancellation, [gathering] {
    absl::MutexLock lock(&gathering->mutex);
    gathering->changed.SignalAll();
  });
  absl::Time aborted = absl::InfiniteFuture();
  bool killed = false;
  while (true) {
    absl::optional<std::string> abort_reason;
    {
      absl::MutexLock lock(&gathering->mutex);
      if (gathering->pending == 0) break;
      gathering->changed.WaitWithTimeout(&gathering->mutex, kLook);
      if (gathering->pending == 0) break;
      const absl::Time first = options.on_error == OnError::kAbortIfBroken ? gathering->first_broken
                                                                           : gathering->first_error;
      const bool failed = gathering->rank_lost || absl::Now() >= first + timing_.abort_grace;
      if (options.on_error != OnError::kNothing && failed) {
        abort_reason = std::string(ChooseError(gathering->Statuses()).message());
      }
    }
    if (!abort_reason.has_value() && options.abort_when_cancelled && cancellation.cancelled()) {
      abort_reason = std::string(cancellation.status().message());
    }
    const absl::Time now = absl::Now();
    if (abort_reason.has_value() && aborted == absl::InfiniteFuture()) {
      aborted = now;
      Abort(running, *abort_reason);
    }
    if (!killed && now >= aborted + timing_.stuck) {
      killed = true;
      KillPending(running, absl::StrCat("did not end within ", absl::FormatDuration(timing_.stuck),
                                        " of an abort"));
    }
    if (options.progress) ReportProgress(members, uid, options);
  }
  {
    absl::MutexLock lock(&mutex_);
    running_.erase(entry);
  }

  Outcome outcome;
  {
    absl::MutexLock lock(&gathering->mutex);
    outcome.statuses = gathering->Statuses();
  }
  outcome.engine_broken = aborted != absl::InfiniteFuture();
  for (size_t i = 0; i < members.size(); ++i) {
    RankStatus& answer = outcome.statuses[i];
    if (absl::IsDeadlineExceeded(answer.status) && IsOfCall(answer.status)) {
      KillAndWait(members[i],
                  absl::StrCat("did not end a command within ", absl::FormatDuration(timeout)));
      if (const auto client = ranks_->Find(members[i]); !client.ok()) {
        answer.status = client.status();
      }
    }
    outcome.engine_broken = outcome.engine_broken || IsBroken(answer);
  }
  outcome.status = ChooseError(outcome.statuses);
  if (!outcome.status.ok()) return outcome;
  absl::MutexLock lock(&gathering->mutex);
  for (auto& answer : gathering->answers) outcome.results.push_back(**std::move(answer));
  return outcome;
}

absl::StatusOr<v1::Rendezvous> RankCommands::OpenRendezvous(const WorkerRef& lead, uint64_t uid,
                                                            int64_t attempt,
                                                            absl::Duration timeout) {
  const auto client = ranks_->Find(lead);
  if (!client.ok()) return client.status();
  v1::OpenRendezvousRequest request;
  request.set_engine_uid(uid);
  request.set_attempt(attempt);
  struct Answer {
    absl::BlockingCounter arrived{1};
    absl::StatusOr<v1::Rendezvous> rendezvous;
  };
  auto answer = std::make_shared<Answer>();
  (*client)->OpenRendezvous(request, timeout + timing_.rendezvous_margin,
                            [answer](absl::StatusOr<v1::Rendezvous> rendezvous) {
                              answer->rendezvous = std::move(rendezvous);
                              answer->arrived.DecrementCount();
                            });
  answer->arrived.Wait();
  const absl::Status status = answer->rendezvous.status();
  if (absl::IsDeadlineExceeded(status) && IsOfCall(status)) {
    // As in Run: who does not answer is named and killed.
    KillAndWait(lead, "did not open a meeting place in time");
    if (const auto lost = ranks_->Find(lead); !lost.ok()) return lost.status();
  }
  return std::move(answer->rendezvous);
}

void RankCommands::DropAsync(const std::vector<WorkerRef>& members, uint64_t uid,
                             const std::string& engine, std::function<void()> dropped) {
  v1::Command command;
  command.set_engine_uid(uid);
  command.mutable_drop_engine();
  Send(members, command, timing_.drop,
       absl::StrCat("did not drop engine ", engine, " within ", absl::FormatDuration(timing_.drop)),
       std::move(dropped));
}

void RankCommands::TellAsync(const std::vector<WorkerRef>& members, const v1::Command& command,
                             std::function<void()> told) {
  Send(members, command, timing_.command, "", std::move(told));
}

void RankCommands::Send(const std::vector<WorkerRef>& members, const v1::Command& command,
                        absl::Duration timeout, const std::string& kill_reason,
                        std::function<void()> told) {
  if (members.empty()) {
    told();
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    ++drops_;
  }
  auto left = std::make_shared<std::atomic<size_t>>(members.size());
  // Called once a member; the last one is the last that touches this.
  const auto one_less = [this, left, told = std::move(told)] {
    if (--*left > 0) return;
    told();
    absl::MutexLock lock(&mutex_);
    --drops_;
  };
  for (const WorkerRef& member : members) {
    tickets_.AcquireAsync({member.rank}, [this, member, command, timeout, kill_reason,
                                          one_less](TicketQueue::Ticket ticket) {
      const auto client = ranks_->Find(member);
      if (!client.ok()) {
        ticket.Release();
        one_less();
        return;
      }
      auto held = std::make_shared<TicketQueue::Ticket>(std::move(ticket));
      (*client)->Execute(command, timeout,
                         [this, member, kill_reason, one_less,
                          held](const absl::StatusOr<v1::CommandResult>& answer) {
                           if (absl::IsDeadlineExceeded(answer.status()) && !kill_reason.empty()) {
                             Kill(member, kill_reason);
                           }
                           held->Release();
                           one_less();
                         });
    });
  }
}

void RankCommands::Drop(const std::vector<WorkerRef>& members, uint64_t uid,
                        const std::string& engine) {
  auto all = std::make_shared<absl::Notification>();
  DropAsync(members, uid, engine, [all] { all->Notify(); });
  all->WaitForNotification();
}

void RankCommands::AbortRunning(uint64_t engine, const std::string& reason) {
  absl::MutexLock lock(&mutex_);
  for (const Running& running : running_) {
    const auto& engines = running.engines;
    if (std::find(engines.begin(), engines.end(), engine) != engines.end()) Abort(running, reason);
  }
}

void RankCommands::KillRunning(uint64_t engine, const std::string& reason) {
  absl::MutexLock lock(&mutex_);
  for (const Running& running : running_) {
    const auto& engines = running.engines;
    if (std::find(engines.begin(), engines.end(), engine) != engines.end()) {
      KillPending(running, reason);
    }
  }
}

void RankCommands::AbortOn(const WorkerRef& member, uint64_t uid, bool move_only,
                           const std::string& reason) {
  const auto client = ranks_->Find(member);
  if (!client.ok()) return;
  v1::AbortRequest request;
  request.set_engine_uid(uid);
  request.set_reason(reason);
  request.set_move_only(move_only);
  (*client)->Abort(request, kAbortTimeout, [](const absl::StatusOr<v1::AbortResponse>&) {});
}

std::vector<absl::StatusOr<v1::WorkerState>> RankCommands::AskStates(
    const std::vector<WorkerRef>& members) {
  struct Answers {
    explicit Answers(size_t count)
        : states(count, absl::UnknownError("no answer")), left(static_cast<int>(count)) {}
    std::vector<absl::StatusOr<v1::WorkerState>> states;
    absl::BlockingCounter left;
  };
  auto answers = std::make_shared<Answers>(members.size());
  for (size_t i = 0; i < members.size(); ++i) {
    const auto client = ranks_->Find(members[i]);
    if (!client.ok()) {
      answers->states[i] = client.status();
      answers->left.DecrementCount();
      continue;
    }
    (*client)->GetState(timing_.refresh, [answers, i](absl::StatusOr<v1::WorkerState> state) {
      answers->states[i] = std::move(state);
      answers->left.DecrementCount();
    });
  }
  answers->left.Wait();
  return answers->states;
}

void RankCommands::Refresh(const std::vector<WorkerRef>& members) {
  std::vector<absl::StatusOr<v1::WorkerState>> states = AskStates(members);
  for (size_t i = 0; i < members.size(); ++i) {
    if (states[i].ok()) ranks_->Answered(members[i], *std::move(states[i]));
  }
}

}  // namespace regroup
