// Connections from one daemon to another.
#ifndef DAEMON_NODE_DAEMON_CHANNEL_H_
#define DAEMON_NODE_DAEMON_CHANNEL_H_

#include <memory>
#include <string>

#include "grpcpp/channel.h"

namespace regroup {

// HOST:PORT, or [HOST]:PORT for an IPv6 address.
std::string JoinHostPort(const std::string& host, int port);

// Connects to `address` (HOST:PORT) when the first call is made, and again whenever that breaks.
std::shared_ptr<grpc::Channel> ConnectToDaemon(const std::string& address);

}  // namespace regroup

#endif  // DAEMON_NODE_DAEMON_CHANNEL_H_
