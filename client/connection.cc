#include "client/connection.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpc/grpc.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace regroup {
namespace {

constexpr int kMaxMessageBytes = 64 << 20;
constexpr absl::Duration kLongestCall = absl::Hours(24);
constexpr absl::Duration kConnecting = absl::Milliseconds(200);  // the pause and one attempt
constexpr absl::Duration kLook = absl::Milliseconds(50);         // for a cancellation

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(duration), 1, int64_t{24} * 3600 * 1000));
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target,
                                           const ClientOptions& options) {
  // gRPC is never shut down: with its last object gone, that can wait 10 s for a connection to
  // close.
  static const bool kept = (grpc_init(), true);
  static_cast<void>(kept);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, Milliseconds(options.first_backoff));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, Milliseconds(options.longest_backoff));
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Two clients of one process do not share a connection: a test may restart the server between
  // them.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(absl::StrCat("dns:///", target),
                                   grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

Backoff::Backoff(const ClientOptions& options)
    : first_(options.first_backoff),
      longest_(options.longest_backoff),
      next_(options.first_backoff),
      random_(std::random_device()()) {}

absl::Duration Backoff::Next() {
  const absl::Duration whole = std::min(next_, longest_);
  next_ = whole * 2;
  return whole * std::uniform_real_distribution<double>(0.5, 1)(random_);
}

bool IsUnreachable(const absl::Status& status) {
  return absl::IsUnavailable(status) && !DetailOf(status).has_value();
}

std::chrono::system_clock::time_point GrpcDeadline(absl::Duration left) {
  return absl::ToChronoTime(absl::Now() + std::min(left, kLongestCall));
}

Connection::Connection(const std::string& target, const ClientOptions& options)
    : options_(options),
      channel_(MakeChannel(target, options)),
      stub_(v1::Control::NewStub(channel_)) {}

void Connection::AwaitConnection(absl::Duration left, const absl::Notification* cancel) {
  const absl::Time end = absl::Now() + std::min(left, kConnecting);
  for (absl::Time now = absl::Now(); now < end; now = absl::Now()) {
    if (cancel != nullptr && cancel->HasBeenNotified()) return;
    if (channel_->WaitForConnected(absl::ToChronoTime(std::min(end, now + kLook)))) return;
  }
}

absl::Status Connection::Probe(const absl::Notification* cancel) {
  CallOptions call;
  call.cancel = cancel;
  return Call(&v1::Control::Stub::AsyncGetStatus, v1::GetStatusRequest(), call).status();
}

}  // namespace regroup
