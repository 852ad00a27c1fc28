#include "tests/system/tcp_proxy.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace regroup::harness {
namespace {

constexpr int kPollMs = 5;

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

int PortOf(const std::string& target) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(target.substr(target.rfind(':') + 1), &port)) << target;
  return port;
}

// Moves what can be read; false at the end of the connection.
bool Forward(int from, int to) {
  char buffer[1 << 16];
  const ssize_t count = recv(from, buffer, sizeof(buffer), MSG_DONTWAIT);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  for (ssize_t sent = 0; sent < count;) {
    const ssize_t now = send(to, buffer + sent, count - sent, MSG_NOSIGNAL);
    if (now <= 0) return false;
    sent += now;
  }
  return count > 0;
}

}  // namespace

TcpProxy::TcpProxy(const std::string& target) : target_port_(PortOf(target)) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof(address);
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(listener_, raw, length), 0);
  EXPECT_EQ(listen(listener_, 16), 0);
  EXPECT_EQ(getsockname(listener_, raw, &length), 0);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Run(); });
}

TcpProxy::~TcpProxy() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  thread_.join();
  close(listener_);
}

std::string TcpProxy::address() const { return absl::StrCat("127.0.0.1:", port_); }

void TcpProxy::HoldAnswers() {
  absl::MutexLock lock(&mutex_);
  holding_ = true;
}

void TcpProxy::Cut() {
  absl::MutexLock lock(&mutex_);
  holding_ = false;
  CloseAll();
}

void TcpProxy::CloseAll() {
  for (const Pair& pair : pairs_) {
    close(pair.client);
    close(pair.server);
  }
  pairs_.clear();
}

void TcpProxy::Accept() {
  Pair pair;
  pair.client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (pair.client < 0) return;
  pair.server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(target_port_);
  if (connect(pair.server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    close(pair.client);
    close(pair.server);
    return;
  }
  pairs_.push_back(pair);
}

void TcpProxy::Run() {
  while (true) {
    std::vector<pollfd> fds = {{listener_, POLLIN, 0}};
    {
      absl::MutexLock lock(&mutex_);
      for (const Pair& pair : pairs_) {
        fds.push_back({pair.client, POLLIN, 0});
        if (!holding_) fds.push_back({pair.server, POLLIN, 0});
      }
    }
    // Short, so that what other threads ask for is seen soon.
    poll(fds.data(), fds.size(), kPollMs);
    absl::MutexLock lock(&mutex_);
    if (ending_) break;
    if ((fds[0].revents & POLLIN) != 0) Accept();
    for (auto pair = pairs_.begin(); pair != pairs_.end();) {
      const bool open =
          Forward(pair->client, pair->server) && (holding_ || Forward(pair->server, pair->client));
      if (open) {
        ++pair;
        continue;
      }
      close(pair->client);
      close(pair->server);
      pair = pairs_.erase(pair);
    }
  }
  absl::MutexLock lock(&mutex_);
  CloseAll();
}

}  // namespace regroup::harness
