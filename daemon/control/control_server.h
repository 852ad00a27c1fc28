// Serves the Control service on one address, beside gRPC's standard health and reflection services.
#ifndef DAEMON_CONTROL_CONTROL_SERVER_H_
#define DAEMON_CONTROL_CONTROL_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/control/control.h"
#include "daemon/control/control_service.h"
#include "grpcpp/server.h"

namespace regroup {

class ControlServer {
 public:
  // Listens and serves. `host` is an address, an IPv6 one without brackets, or a name: then the
  // first of its addresses that this machine has, and no other. Port 0: a free one. `control`
  // outlives this. Errors: UNAVAILABLE naming --listen, the address and what the system said.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(const std::string& host, int port,
                                                              Control* control);
  ~ControlServer();

  int port() const { return port_; }
  // HOST:PORT, or [HOST]:PORT for an IPv6 address.
  std::string address() const;

  // What the health service says of "" (the daemon) and of regroup.v1.Control: SERVING or, until
  // this is called, NOT_SERVING. Thread safe.
  void SetServing(bool serving);

  // Calls that still run after `grace` are cancelled.
  void Shutdown(absl::Duration grace);

 private:
  ControlServer(std::string host, Control* control) : host_(std::move(host)), service_(control) {}

  const std::string host_;
  int port_ = 0;
  ControlService service_;
  std::unique_ptr<grpc::Server> server_;
};

// HOST:PORT, or [HOST]:PORT for an IPv6 address.
std::string JoinHostPort(const std::string& host, int port);

}  // namespace regroup

#endif  // DAEMON_CONTROL_CONTROL_SERVER_H_
