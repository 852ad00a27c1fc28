#include "engine/group/rendezvous.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/strings/str_cat.h"
#include "engine/group/comm_status.h"

namespace regroup {
namespace {

// A listening socket on `host`, port 0, and the port that the kernel chose. TCPStore by itself
// would listen on every address of the machine.
absl::StatusOr<int> Listen(const std::string& host, int* port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), "0", &hints, &found); error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rendezvous host '", host, "': ", gai_strerror(error)));
  }
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> guard(found, freeaddrinfo);
  const int fd = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, found->ai_protocol);
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  if (fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 128) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    const std::string why = std::strerror(errno);
    if (fd >= 0) close(fd);
    return absl::UnavailableError(absl::StrCat("cannot listen on '", host, "': ", why));
  }
  *port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                            : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  return fd;
}

class TcpRendezvousServer : public RendezvousServer {
 public:
  TcpRendezvousServer(c10::intrusive_ptr<c10d::TCPStore> store, int port)
      : store_(std::move(store)), port_(port) {}
  int port() const override { return port_; }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
  int port_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RendezvousServer>> RendezvousServer::Start(const std::string& host) {
  int port = 0;
  absl::StatusOr<int> fd = Listen(host, &port);
  if (!fd.ok()) return fd.status();
  std::unique_ptr<RendezvousServer> server;
  absl::Status status = CatchStatus("start a rendezvous store", [&] {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(port);
    options.isServer = true;
    options.waitWorkers = false;
    options.masterListenFd = *fd;
    options.useLibUV = false;  // the libuv backend takes no socket of ours
    server = std::make_unique<TcpRendezvousServer>(
        c10::make_intrusive<c10d::TCPStore>(host, options), port);
    return absl::OkStatus();
  });
  if (!status.ok()) {
    close(*fd);
    return status;
  }
  return server;
}

}  // namespace regroup
