#include "daemon/node/daemon_channel.h"

#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace regroup {
namespace {

constexpr int kMaxMessageBytes = 256 << 20;  // as workers allow

}  // namespace

std::string JoinHostPort(const std::string& host, int port) {
  const bool ipv6 = host.find(':') != std::string::npos;
  return absl::StrCat(ipv6 ? "[" : "", host, ipv6 ? "]:" : ":", port);
}

std::shared_ptr<grpc::Channel> ConnectToDaemon(const std::string& address) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // This one is the time that a connection may take.
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Connections of a daemon that was replaced are not another one's.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetMaxSendMessageSize(kMaxMessageBytes);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
}

}  // namespace regroup
