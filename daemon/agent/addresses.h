// At which address a daemon listens, and at which others reach it.
#ifndef DAEMON_AGENT_ADDRESSES_H_
#define DAEMON_AGENT_ADDRESSES_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace regroup {

// What the machine says; replaced in tests.
struct AddressSource {
  // The numeric addresses of a name or address, in the resolver's order. Errors: UNAVAILABLE.
  std::function<absl::StatusOr<std::vector<std::string>>(const std::string& host)> resolve;
  // This machine's address on the way to HOST:PORT; nothing is sent.
  std::function<absl::StatusOr<std::string>(const std::string& host, int port)> toward;
  // The addresses of this machine's interfaces, without link-local ones.
  std::function<std::vector<std::string>()> own;
};
AddressSource SystemAddresses();

struct AddressFlags {
  std::string listen;     // the host of --listen
  std::string advertise;  // "" = not given
  std::string join_host;  // of --join; "" = this is a primary
  int join_port = 0;
};

struct Addresses {
  std::string listen;     // what to listen on: the flag's host, or what stands in for it
  std::string advertise;  // numeric: where other daemons, and their workers, reach this one
};

bool IsLoopbackAddress(const std::string& address);  // of a numeric one

// A name may resolve to a loopback address (Debian's /etc/hosts gives a machine's own name
// 127.0.1.1), at which no other machine reaches this one. Such an address is advertised only if the
// primary is on loopback as well; a name that has no other is listened for on every interface,
// unless it is localhost. Errors: INVALID_ARGUMENT naming flag, value and what is allowed;
// UNAVAILABLE (a name without an address).
absl::StatusOr<Addresses> ChooseAddresses(const AddressFlags& flags, const AddressSource& source);

}  // namespace regroup

#endif  // DAEMON_AGENT_ADDRESSES_H_
