#include "daemon/node/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "daemon/node/steady_clock.h"
#include "spdlog/spdlog.h"

namespace regroup {
namespace {

constexpr int kWorkerNice = 5;  // below the daemon, which has to answer while workers compute
constexpr absl::Duration kLongestWait = absl::Milliseconds(500);

int UsableCores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

// Never 0, which means "none" in messages.
uint64_t RandomIncarnation() {
  uint64_t value = 0;
  while (value == 0) {
    if (getrandom(&value, sizeof(value), 0) != sizeof(value)) value = 0;
  }
  return value;
}

}  // namespace

// What other threads hand to Run. Outlives the supervisor as long as an answer is under way.
class Supervisor::Inbox {
 public:
  struct Answer {
    WorkerRef ref;
    absl::StatusOr<v1::WorkerState> state;
  };
  struct KillOrder {
    WorkerRef ref;
    std::string reason;
  };
  struct Content {
    std::vector<Answer> answers;
    std::vector<KillOrder> kills;
    bool stop = false;
  };

  Inbox() : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  int fd() const { return wake_.get(); }

  template <typename Change>
  void Put(Change change) {
    absl::MutexLock lock(&mutex_);
    change(content_);
    const uint64_t one = 1;
    (void)!write(wake_.get(), &one, sizeof(one));
  }

  // Everything since the last call; a stop is kept.
  Content Take() {
    absl::MutexLock lock(&mutex_);
    uint64_t count;
    (void)!read(wake_.get(), &count, sizeof(count));
    Content taken = std::move(content_);
    content_ = Content();
    content_.stop = taken.stop;
    return taken;
  }

  bool stopped() {
    absl::MutexLock lock(&mutex_);
    return content_.stop;
  }

 private:
  const Fd wake_;
  absl::Mutex mutex_;
  Content content_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<Supervisor>> Supervisor::Make(const SupervisorOptions& options,
                                                             RankTable* table) {
  PrivateDir::RemoveStale();
  absl::StatusOr<PrivateDir> folder = PrivateDir::Make();
  if (!folder.ok()) return folder.status();
  int lifeline[2];
  if (pipe2(lifeline, O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("cannot make a pipe: ", strerror(errno)));
  }
  return std::unique_ptr<Supervisor>(
      new Supervisor(options, table, *std::move(folder), Fd(lifeline[0]), Fd(lifeline[1])));
}

Supervisor::Supervisor(const SupervisorOptions& options, RankTable* table, PrivateDir folder,
                       Fd lifeline_read, Fd lifeline_write)
    : options_(options),
      table_(table),
      folder_(std::move(folder)),
      lifeline_read_(std::move(lifeline_read)),
      lifeline_write_(std::move(lifeline_write)),
      inbox_(std::make_shared<Inbox>()),
      slots_(options.ranks) {
  for (int i = 0; i < options.ranks; ++i) slots_[i].rank = options.first_rank + i;
}

Supervisor::~Supervisor() { KillAll(); }

const std::string& Supervisor::socket_folder() const { return folder_.path(); }

void Supervisor::Stop() {
  inbox_->Put([](Inbox::Content& content) { content.stop = true; });
}

void Supervisor::Kill(const WorkerRef& ref, const std::string& reason) {
  inbox_->Put([&](Inbox::Content& content) { content.kills.push_back({ref, reason}); });
}

absl::Status Supervisor::Start(Slot& slot, absl::Time now) {
  const WorkerRef ref{slot.rank, RandomIncarnation()};
  slot.socket_path = absl::StrCat(folder_.path(), "/", slot.rank, ".", absl::Hex(ref.incarnation));
  SpawnOptions spawn;
  spawn.binary = options_.worker_binary;
  spawn.args = {absl::StrCat("--rank=", slot.rank),
                absl::StrCat("--socket=", slot.socket_path),
                absl::StrCat("--incarnation=", ref.incarnation),
                absl::StrCat("--lifeline-fd=", lifeline_read_.get()),
                absl::StrCat("--host=", options_.host),
                absl::StrCat("--device=", options_.device)};
  spawn.environment = {
      {"OMP_NUM_THREADS", absl::StrCat(std::max(1, UsableCores() / options_.ranks))},
      {"OMP_WAIT_POLICY", "passive"}};
  // libtorch: large tensors lie in huge pages where the system gives them on request. Faults of
  // small pages would take longer than moving a state does.
  if (std::getenv("THP_MEM_ALLOC_ENABLE") == nullptr) {
    spawn.environment.emplace_back("THP_MEM_ALLOC_ENABLE", "1");
  }
  spawn.lifeline_fd = lifeline_read_.get();
  spawn.nice = kWorkerNice;
  absl::StatusOr<WorkerProcess> process = WorkerProcess::Spawn(spawn);
  if (!process.ok()) return process.status();

  slot.process = std::make_unique<WorkerProcess>(*std::move(process));
  slot.pid = slot.process->pid();
  slot.client = WorkerClient::Make(ref, slot.socket_path);
  slot.ready = false;
  slot.output_open = true;
  slot.started = now;
  slot.answered = now;
  slot.kill_reason.clear();
  slot.tail = LogTail();
  table_->Started(slot.client, slot.pid);
  spdlog::info("rank {}: started pid {}", slot.rank, slot.pid);
  Ask(slot, now);
  return absl::OkStatus();
}

void Supervisor::Ask(Slot& slot, absl::Time now) {
  slot.asked = true;
  slot.ask_at = now + options_.health_interval;
  // The first one waits until the worker is up. A later one gives up early enough to be asked
  // again.
  const absl::Duration timeout = slot.ready ? options_.hang_timeout / 4 : options_.start_timeout;
  slot.client->GetState(
      timeout, [inbox = inbox_, ref = slot.client->ref()](absl::StatusOr<v1::WorkerState> state) {
        inbox->Put([&](Inbox::Content& content) {
          content.answers.push_back({ref, std::move(state)});
        });
      });
}

// A daemon that was stopped or starved has not listened: that silence is not the workers'.
void Supervisor::ForgiveOwnPause(absl::Time now) {
  const absl::Duration pause = now - std::exchange(looked_, now) - kLongestWait;
  if (pause <= kLongestWait) return;
  for (Slot& slot : slots_) slot.answered += pause;
}

void Supervisor::TakeAnswers(absl::Time now) {
  Inbox::Content content = inbox_->Take();
  for (Inbox::Answer& answer : content.answers) {
    Slot& slot = SlotOf(answer.ref.rank);
    if (slot.client == nullptr || !(slot.client->ref() == answer.ref))
      continue;  // an earlier process
    slot.asked = false;
    if (!answer.state.ok()) continue;
    if (answer.state->incarnation() != answer.ref.incarnation) {
      KillSlot(slot, "answered for another incarnation");
      continue;
    }
    slot.answered = now;
    if (!slot.ready) {
      slot.ready = true;
      spdlog::info("rank {}: ready, pid {}", slot.rank, slot.pid);
      table_->Answered(answer.ref, *std::move(answer.state));
      table_->Ready(answer.ref);
    } else {
      table_->Answered(answer.ref, *std::move(answer.state));
    }
  }
  for (const Inbox::KillOrder& order : content.kills) {
    if (order.ref.rank < options_.first_rank ||
        order.ref.rank >= options_.first_rank + options_.ranks) {
      continue;
    }
    Slot& slot = SlotOf(order.ref.rank);
    if (slot.client != nullptr && slot.client->ref() == order.ref) KillSlot(slot, order.reason);
  }
}

void Supervisor::KillSlot(Slot& slot, const std::string& reason) {
  if (slot.process == nullptr || !slot.kill_reason.empty()) return;
  slot.kill_reason = reason;
  slot.process->Kill();
}

void Supervisor::ReadOutput(Slot& slot) {
  const auto log = [&slot](const std::string& line) {
    spdlog::info("rank {}: {}", slot.rank, line);
  };
  char buffer[4096];
  // Bounded, so that one chatty worker does not keep the others waiting.
  for (int i = 0; i < 16; ++i) {
    const ssize_t got = read(slot.process->output_fd(), buffer, sizeof(buffer));
    if (got == 0) slot.output_open = false;
    if (got <= 0) return;
    slot.tail.Append({buffer, static_cast<size_t>(got)}, log);
  }
}

absl::Status Supervisor::Ended(Slot& slot, WorkerProcess::Exit exit, absl::Time now) {
  ReadOutput(slot);
  slot.tail.Flush(
      [&slot](const std::string& line) { spdlog::info("rank {}: {}", slot.rank, line); });
  const WorkerEnd end{slot.rank, slot.pid, exit.signaled, exit.code, slot.kill_reason};
  const std::string error = DescribeWithTail(end, slot.tail.Lines());
  spdlog::warn("{}", error);
  unlink(slot.socket_path.c_str());
  const WorkerRef ref = slot.client->ref();
  const bool was_ready = slot.ready;
  slot.process = nullptr;
  slot.client = nullptr;
  slot.ready = false;
  slot.quick_ends = now - slot.started < options_.settled ? slot.quick_ends + 1 : 1;
  const int doublings = std::min(slot.quick_ends - 1, 16);
  slot.start_at = now + std::min(options_.max_backoff, options_.min_backoff * (1 << doublings));
  table_->Lost(ref, Describe(end), error);
  if (!were_all_ready_ && !was_ready && slot.quick_ends >= options_.max_first_failures) {
    return absl::InternalError(absl::StrCat("workers do not start: ", error));
  }
  return absl::OkStatus();
}

absl::Status Supervisor::DoWhatIsDue(absl::Time now, absl::Time* next) {
  *next = now + kLongestWait;
  for (Slot& slot : slots_) {
    if (slot.process == nullptr) {
      if (slot.start_at <= now) {
        if (absl::Status status = Start(slot, now); !status.ok()) {
          if (!were_all_ready_) return status;
          spdlog::error("rank {}: {}", slot.rank, std::string(status.message()));
          slot.start_at = now + options_.max_backoff;
        }
      }
      *next = std::min(*next, slot.process == nullptr ? slot.start_at : slot.ask_at);
      continue;
    }
    const absl::Duration silent = now - slot.answered;
    if (slot.ready && silent >= options_.hang_timeout) {
      KillSlot(slot,
               absl::StrCat("did not answer for ", absl::FormatDuration(options_.hang_timeout)));
    } else if (!slot.ready && silent >= options_.start_timeout) {
      KillSlot(slot,
               absl::StrCat("was not ready after ", absl::FormatDuration(options_.start_timeout)));
    } else if (!slot.asked && slot.ask_at <= now) {
      Ask(slot, now);
    }
    if (!slot.asked) *next = std::min(*next, slot.ask_at);
  }
  table_->EndUndecided(absl::Now());
  return absl::OkStatus();
}

void Supervisor::Wait(absl::Time until, const Hooks& hooks) {
  std::vector<pollfd> fds;
  fds.push_back({inbox_->fd(), POLLIN, 0});
  fds.push_back({options_.signal_fd, POLLIN, 0});  // ignored by poll if -1
  for (const Slot& slot : slots_) {
    const bool running = slot.process != nullptr;
    fds.push_back({running ? slot.process->pidfd() : -1, POLLIN, 0});
    fds.push_back({running && slot.output_open ? slot.process->output_fd() : -1, POLLIN, 0});
  }
  const int64_t milliseconds =
      absl::ToInt64Milliseconds(absl::Ceil(until - SteadyNow(), absl::Milliseconds(1)));
  if (poll(fds.data(), fds.size(), static_cast<int>(std::max<int64_t>(milliseconds, 0))) <= 0)
    return;
  if (fds[1].revents != 0) {
    signalfd_siginfo info;
    if (read(options_.signal_fd, &info, sizeof(info)) == sizeof(info) && hooks.on_signal) {
      hooks.on_signal(static_cast<int>(info.ssi_signo));
    }
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].process != nullptr && fds[3 + 2 * i].revents != 0) ReadOutput(slots_[i]);
  }
}

void Supervisor::ReportReady(const Hooks& hooks) {
  if (were_all_ready_) return;
  for (const Slot& slot : slots_) {
    if (!slot.ready) return;
  }
  were_all_ready_ = true;
  if (hooks.all_ready) hooks.all_ready();
}

absl::Status Supervisor::Run(const Hooks& hooks) {
  absl::Status status;
  absl::Time next = absl::InfinitePast();
  looked_ = SteadyNow();
  while (status.ok() && !inbox_->stopped()) {
    Wait(next, hooks);
    const absl::Time now = SteadyNow();
    ForgiveOwnPause(now);
    TakeAnswers(now);
    for (Slot& slot : slots_) {
      if (slot.process == nullptr || !status.ok()) continue;
      if (const auto exit = slot.process->Reap()) status = Ended(slot, *exit, now);
    }
    ReportReady(hooks);
    if (status.ok()) status = DoWhatIsDue(now, &next);
  }
  KillAll();
  return status;
}

void Supervisor::KillAll() {
  for (Slot& slot : slots_) {
    if (slot.process != nullptr) slot.process->Kill();
  }
  for (Slot& slot : slots_) {
    if (slot.process == nullptr) continue;
    ReadOutput(slot);
    slot.process = nullptr;  // reaps
    unlink(slot.socket_path.c_str());
    const std::string how =
        absl::StrCat("rank ", slot.rank, " (pid ", slot.pid, ") was stopped with its daemon");
    table_->Lost(slot.client->ref(), how, how);
    slot.client = nullptr;
  }
}

}  // namespace regroup
