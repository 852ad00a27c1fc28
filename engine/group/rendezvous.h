// Where the members of a group meet: a TCPStore on the lead, used while groups form and never
// after.
#ifndef ENGINE_GROUP_RENDEZVOUS_H_
#define ENGINE_GROUP_RENDEZVOUS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace regroup {

struct RendezvousAddress {
  std::string host;
  int port = 0;
  std::string prefix;  // engine uid / attempt; groups add their names
};

// The serving side. The store lives as long as this object.
class RendezvousServer {
 public:
  // Listens on a free port of `host`, an address of this machine. Errors: INVALID_ARGUMENT (not an
  // address), UNAVAILABLE (cannot bind).
  static absl::StatusOr<std::unique_ptr<RendezvousServer>> Start(
      const std::string& host = "127.0.0.1");
  virtual ~RendezvousServer() = default;
  virtual int port() const = 0;
};

}  // namespace regroup

#endif  // ENGINE_GROUP_RENDEZVOUS_H_
