#include "daemon/agent/joiner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "daemon/node/daemon_channel.h"
#include "proto/rpc_status.h"
#include "spdlog/spdlog.h"

namespace regroup {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(100);

}  // namespace

bool WorthAnotherTry(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

Joiner::Joiner(const JoinerOptions& options, const v1::JoinRequest& request)
    : options_(options),
      stub_(v1::Agent::NewStub(ConnectToDaemon(options.primary))),
      request_(request) {}

Joiner::~Joiner() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  if (keeper_.joinable()) keeper_.join();
}

absl::StatusOr<v1::JoinResponse> Joiner::Try(absl::FunctionRef<bool()> stopped) {
  struct Call {
    grpc::ClientContext context;
    v1::JoinRequest request;
    v1::JoinResponse response;
    grpc::Status status;
    absl::Notification over;
  };
  auto call = std::make_shared<Call>();
  call->request = request_;
  call->context.set_deadline(absl::ToChronoTime(absl::Now() + options_.call));
  stub_->async()->Join(&call->context, &call->request, &call->response,
                       [call](const grpc::Status& status) {
                         call->status = status;
                         call->over.Notify();
                       });
  bool cancelled = false;
  while (!call->over.WaitForNotificationWithTimeout(kLook)) {
    if (cancelled || !stopped()) continue;
    cancelled = true;
    call->context.TryCancel();
  }
  if (cancelled) return absl::CancelledError("stopped");
  if (!call->status.ok()) return FromGrpc(call->status);
  return call->response;
}

absl::StatusOr<v1::JoinResponse> Joiner::JoinFirst(absl::FunctionRef<bool()> stopped) {
  const absl::Time deadline = absl::Now() + options_.patience;
  absl::Duration backoff = options_.min_backoff;
  while (true) {
    absl::StatusOr<v1::JoinResponse> joined = Try(stopped);
    if (joined.ok() || absl::IsCancelled(joined.status())) return joined;
    const absl::Status& status = joined.status();
    if (!WorthAnotherTry(status)) {
      return absl::Status(status.code(),
                          absl::StrCat("--join=", options_.primary, ": ", status.message()));
    }
    const absl::Time next = absl::Now() + backoff;
    if (next >= deadline) {
      return absl::UnavailableError(
          absl::StrCat("--join=", options_.primary, ": no primary took this node in for ",
                       absl::FormatDuration(options_.patience), ": ", status.message()));
    }
    while (absl::Now() < next) {
      if (stopped()) return absl::CancelledError("stopped");
      absl::SleepFor(std::min(kLook, backoff));
    }
    backoff = std::min(options_.max_backoff, backoff * 2);
  }
}

void Joiner::KeepJoined(const v1::JoinResponse& joined, std::function<absl::Duration()> unasked) {
  request_.set_first_rank(joined.first_rank());
  request_.set_any_first_rank(false);
  request_.set_cluster(joined.cluster());
  unasked_ = std::move(unasked);
  keeper_ = std::thread([this] { Loop(); });
}

void Joiner::Loop() {
  const auto closing = [this] {
    absl::MutexLock lock(&mutex_);
    return closing_;
  };
  absl::Duration backoff = options_.min_backoff;
  std::string last;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&closing_), backoff);
      if (closing_) return;
    }
    if (unasked_() < options_.unasked) {
      backoff = options_.min_backoff;
      continue;
    }
    const absl::StatusOr<v1::JoinResponse> joined = Try(closing);
    // Said once, not every time.
    const std::string now = joined.ok()
                                ? absl::StrCat("joined ", joined->primary(), " again")
                                : absl::StrCat("cannot join again: ", joined.status().message());
    if (std::exchange(last, now) != now && !closing()) {
      spdlog::info("--join={}: {}", options_.primary, now);
    }
    backoff = std::min(options_.max_backoff, backoff * 2);
  }
}

}  // namespace regroup
