// Serves the Control service and those between daemons on one address, beside gRPC's standard
// health and reflection services.
#ifndef DAEMON_CONTROL_CONTROL_SERVER_H_
#define DAEMON_CONTROL_CONTROL_SERVER_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/control/control.h"
#include "daemon/control/control_service.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/server.h"

namespace regroup {

// What is served beside Control; outlives the server.
struct MoreServices {
  std::vector<grpc::Service*> services;
  grpc::CallbackGenericService* others = nullptr;  // answers every call of no other service
};

class ControlServer {
 public:
  // Listens and serves. `host` is an address, an IPv6 one without brackets, or a name: then the
  // first of its addresses that this machine has, and no other. Port 0: a free one. `control`
  // outlives this; nullptr: Control is not served. Errors: UNAVAILABLE naming --listen, the address
  // and what the system said.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(const std::string& host, int port,
                                                              Control* control,
                                                              const MoreServices& more = {});
  ~ControlServer();

  int port() const { return port_; }
  // HOST:PORT, or [HOST]:PORT for an IPv6 address.
  std::string address() const;

  // What the health service says of "" (the daemon) and, where that is served, of
  // regroup.v1.Control: SERVING or, until this is called, NOT_SERVING. Thread safe.
  void SetServing(bool serving);

  // Calls that still run after `grace` are cancelled.
  void Shutdown(absl::Duration grace);

 private:
  explicit ControlServer(std::string host) : host_(std::move(host)) {}

  const std::string host_;
  int port_ = 0;
  std::unique_ptr<ControlService> service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_CONTROL_SERVER_H_
