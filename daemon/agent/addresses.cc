#include "daemon/agent/addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/control/field_error.h"

namespace regroup {
namespace {

bool IsV4(const std::string& host, in_addr* address) {
  return inet_pton(AF_INET, host.c_str(), address) == 1;
}

bool IsV6(const std::string& host, in6_addr* address) {
  return inet_pton(AF_INET6, host.c_str(), address) == 1;
}

bool IsNumeric(const std::string& host) {
  in_addr v4;
  in6_addr v6;
  return IsV4(host, &v4) || IsV6(host, &v6);
}

bool IsWildcard(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

std::string Numeric(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST];
  const int error = getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text : "";
}

absl::StatusOr<std::vector<std::string>> Resolve(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("'", host, "' has no address: ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> guard(found, freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    std::string address = Numeric(each->ai_addr, each->ai_addrlen);
    if (!address.empty()) addresses.push_back(std::move(address));
  }
  return addresses;
}

absl::StatusOr<std::string> Toward(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("'", host, "' has no address: ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> guard(found, freeaddrinfo);
  std::string why = "it has no address";
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const int fd = socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_storage own = {};
    socklen_t length = sizeof(own);
    const bool good = fd >= 0 && connect(fd, each->ai_addr, each->ai_addrlen) == 0 &&
                      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0;
    why = strerror(errno);
    if (fd >= 0) close(fd);
    if (good) return Numeric(reinterpret_cast<sockaddr*>(&own), length);
  }
  return absl::UnavailableError(absl::StrCat("there is no way to '", host, "': ", why));
}

std::vector<std::string> OwnAddresses() {
  ifaddrs* all = nullptr;
  std::vector<std::string> addresses;
  if (getifaddrs(&all) != 0) return addresses;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (family == AF_INET6 &&
        IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<sockaddr_in6*>(each->ifa_addr)->sin6_addr)) {
      continue;
    }
    std::string address =
        Numeric(each->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (!address.empty()) addresses.push_back(std::move(address));
  }
  freeifaddrs(all);
  return addresses;
}

// The first that is not loopback; "" if all are.
std::string FirstBeyondLoopback(const std::vector<std::string>& addresses) {
  const auto found =
      std::find_if(addresses.begin(), addresses.end(), [](const std::string& address) {
        return !IsLoopbackAddress(address) && !IsWildcard(address);
      });
  return found == addresses.end() ? "" : *found;
}

absl::Status Unreachable(absl::string_view flag, const std::string& value,
                         const std::string& address, const AddressFlags& flags) {
  return FieldError(
      flag, value,
      absl::StrCat(value == address ? "is" : absl::StrCat("means ", address, ", "),
                   value == address ? " a loopback address" : "a loopback address",
                   ", at which --join=", flags.join_host, " does not reach this node"),
      "an address that other machines reach, e.g. by --listen=0.0.0.0:PORT or "
      "--advertise=ADDRESS");
}

absl::StatusOr<std::string> Advertised(const AddressFlags& flags, bool only_loopback,
                                       const AddressSource& source) {
  const absl::StatusOr<std::vector<std::string>> addresses = source.resolve(flags.advertise);
  if (!addresses.ok()) {
    return FieldError("--advertise", flags.advertise, "has no address",
                      "an address of this machine, or a name that has one");
  }
  std::string address = FirstBeyondLoopback(*addresses);
  if (address.empty() && !addresses->empty()) address = addresses->front();
  if (address.empty() || IsWildcard(address)) {
    return FieldError("--advertise", flags.advertise, "is no address to be reached at",
                      "an address of this machine, or a name that has one");
  }
  if (IsLoopbackAddress(address)) {
    if (!flags.join_host.empty() && !only_loopback) {
      return Unreachable("--advertise", flags.advertise, address, flags);
    }
    return address;
  }
  const std::vector<std::string> own = source.own();
  if (std::find(own.begin(), own.end(), address) == own.end()) {
    return FieldError("--advertise", flags.advertise,
                      "is not an address of this machine, where its workers could listen",
                      absl::StrCat("one of ", absl::StrJoin(own, ", ")));
  }
  return address;
}

}  // namespace

AddressSource SystemAddresses() { return {Resolve, Toward, OwnAddresses}; }

bool IsLoopbackAddress(const std::string& address) {
  in_addr v4;
  in6_addr v6;
  if (IsV4(address, &v4)) return (ntohl(v4.s_addr) >> 24) == 127;
  if (!IsV6(address, &v6)) return false;
  if (IN6_IS_ADDR_V4MAPPED(&v6)) return v6.s6_addr[12] == 127;
  return IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::StatusOr<Addresses> ChooseAddresses(const AddressFlags& flags, const AddressSource& source) {
  Addresses result;
  bool join_on_loopback = false;
  if (!flags.join_host.empty()) {
    // Not fatal here: the join is tried again for a while, and says what is wrong.
    const absl::StatusOr<std::vector<std::string>> primary = source.resolve(flags.join_host);
    join_on_loopback = primary.ok() && FirstBeyondLoopback(*primary).empty();
  }
  std::string bound = flags.listen;  // numeric
  result.listen = flags.listen;
  if (!IsNumeric(flags.listen)) {
    const absl::StatusOr<std::vector<std::string>> addresses = source.resolve(flags.listen);
    if (!addresses.ok() || addresses->empty()) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on --listen=", flags.listen, ": ",
                       addresses.ok() ? "it has no address" : addresses.status().message()));
    }
    bound = FirstBeyondLoopback(*addresses);
    if (bound.empty() && (flags.listen == "localhost" || join_on_loopback)) {
      bound = addresses->front();
    } else if (bound.empty()) {
      result.listen = bound = "0.0.0.0";
    } else if (bound != addresses->front()) {
      result.listen = bound;
    }
  }
  if (!flags.advertise.empty()) {
    absl::StatusOr<std::string> address = Advertised(flags, join_on_loopback, source);
    if (!address.ok()) return address.status();
    result.advertise = *std::move(address);
    return result;
  }
  if (!IsWildcard(bound)) {
    if (IsLoopbackAddress(bound) && !flags.join_host.empty() && !join_on_loopback) {
      return Unreachable("--listen", flags.listen, bound, flags);
    }
    result.advertise = bound;
    return result;
  }
  if (!flags.join_host.empty()) {
    absl::StatusOr<std::string> address = source.toward(flags.join_host, flags.join_port);
    if (!address.ok()) return address.status();
    result.advertise = *std::move(address);
    return result;
  }
  // Of the family that is listened on, if there is one: gloo does not join the two.
  const std::vector<std::string> own = source.own();
  std::vector<std::string> alike;
  in_addr v4;
  std::copy_if(own.begin(), own.end(), std::back_inserter(alike),
               [&](const std::string& address) { return IsV4(address, &v4) != (bound == "::"); });
  result.advertise = FirstBeyondLoopback(alike);
  if (result.advertise.empty() && bound == "::") result.advertise = FirstBeyondLoopback(own);
  if (result.advertise.empty()) result.advertise = bound == "::" ? "::1" : "127.0.0.1";
  return result;
}

}  // namespace regroup
