#include "daemon/control/control_server.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace regroup {
namespace {

constexpr int kMaxMessageBytes = 64 << 20;  // thousands of long prompts

// gRPC does not say why it cannot listen, so this asks the system.
std::string WhyNot(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error != 0) return gai_strerror(error);
  std::string why;
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    const int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int one = 1;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
        bind(fd, address->ai_addr, address->ai_addrlen) != 0 || listen(fd, 1) != 0) {
      why = strerror(errno);
    }
    if (fd >= 0) close(fd);
  }
  freeaddrinfo(found);
  return why.empty() ? "the address cannot be used" : why;
}

}  // namespace

std::string JoinHostPort(const std::string& host, int port) {
  const bool ipv6 = host.find(':') != std::string::npos;
  return absl::StrCat(ipv6 ? "[" : "", host, ipv6 ? "]:" : ":", port);
}

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(const std::string& host,
                                                                    int port, Control* control) {
  std::unique_ptr<ControlServer> result(new ControlServer(host, control));
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // A client that vanished without a word is noticed within a minute.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.AddListeningPort(JoinHostPort(host, port), grpc::InsecureServerCredentials(),
                           &result->port_);
  builder.RegisterService(&result->service_);
  result->server_ = builder.BuildAndStart();
  if (result->server_ == nullptr || result->port_ == 0) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on --listen=", JoinHostPort(host, port), ": ", WhyNot(host, port)));
  }
  control->SetAddress(result->address());
  return result;
}

ControlServer::~ControlServer() { Shutdown(absl::ZeroDuration()); }

std::string ControlServer::address() const { return JoinHostPort(host_, port_); }

void ControlServer::Shutdown(absl::Duration grace) {
  if (server_ != nullptr) server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
}

}  // namespace regroup
