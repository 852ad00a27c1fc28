#include "daemon/control/control_server.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/node/daemon_channel.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace regroup {
namespace {

constexpr int kMaxMessageBytes = 64 << 20;   // thousands of long prompts
constexpr int kMaxCommandBytes = 256 << 20;  // as workers allow
// Of reflection, which has one for each open stream; the Control service takes none.
constexpr int kMaxBlockingThreads = 16;

// Both are switched on for all servers of a process, before the first is built.
void AddStandardServices() {
  static const bool once = [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  static_cast<void>(once);
}

// Binds a socket of its own for a moment. 0, or errno. gRPC does not say why it cannot listen.
int TryToListen(const sockaddr* address, socklen_t length) {
  const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  const bool good = bind(fd, address, length) == 0 && listen(fd, 1) == 0;
  const int error = good ? 0 : errno;
  close(fd);
  return error;
}

// The one address to serve: the first of the name's that this machine has. (Were all of them tried,
// one that is taken would be passed over in silence.)
absl::StatusOr<std::string> Resolve(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  int error = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  std::string address;
  for (const addrinfo* each = found; each != nullptr && address.empty(); each = each->ai_next) {
    error = TryToListen(each->ai_addr, each->ai_addrlen);
    if (error == EADDRNOTAVAIL || error == EAFNOSUPPORT) continue;
    char text[NI_MAXHOST];
    if (error == 0 && getnameinfo(each->ai_addr, each->ai_addrlen, text, sizeof(text), nullptr, 0,
                                  NI_NUMERICHOST) == 0) {
      address = text;
    }
    break;
  }
  freeaddrinfo(found);
  if (!address.empty()) return address;
  return absl::UnavailableError(error == 0 ? "the address cannot be used" : strerror(error));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(const std::string& host,
                                                                    int port, Control* control,
                                                                    const MoreServices& more) {
  const auto error = [&](absl::string_view why) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on --listen=", JoinHostPort(host, port), ": ", why));
  };
  const absl::StatusOr<std::string> address = Resolve(host, port);
  if (!address.ok()) return error(address.status().message());
  std::unique_ptr<ControlServer> result(new ControlServer(host));
  AddStandardServices();
  grpc::ServerBuilder builder;
  grpc::ResourceQuota quota("control");
  quota.SetMaxThreads(kMaxBlockingThreads);
  builder.SetResourceQuota(quota);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // A client that vanished without a word is noticed within a minute.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  builder.SetMaxReceiveMessageSize(control == nullptr ? kMaxCommandBytes : kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxCommandBytes);
  builder.AddListeningPort(JoinHostPort(*address, port), grpc::InsecureServerCredentials(),
                           &result->port_);
  if (control != nullptr) {
    result->service_ = std::make_unique<ControlService>(control);
    builder.RegisterService(result->service_.get());
  }
  for (grpc::Service* service : more.services) builder.RegisterService(service);
  if (more.others != nullptr) builder.RegisterCallbackGenericService(more.others);
  result->server_ = builder.BuildAndStart();
  if (result->server_ == nullptr || result->port_ == 0) {
    return error("the address cannot be used");
  }
  result->SetServing(false);
  if (control != nullptr) control->SetAddress(result->address());
  return result;
}

ControlServer::~ControlServer() { Shutdown(absl::ZeroDuration()); }

std::string ControlServer::address() const { return JoinHostPort(host_, port_); }

void ControlServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
  health->SetServingStatus("", serving);
  if (service_ != nullptr) health->SetServingStatus(v1::Control::service_full_name(), serving);
}

void ControlServer::Shutdown(absl::Duration grace) {
  if (server_ != nullptr) server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
}

}  // namespace regroup
