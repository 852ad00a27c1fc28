// A connection that breaks when a test wants it to.
#ifndef TESTS_SYSTEM_TCP_PROXY_H_
#define TESTS_SYSTEM_TCP_PROXY_H_

#include <list>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace regroup::harness {

// Forwards TCP connections to a server of this machine, on a thread of its own. Thread safe.
class TcpProxy {
 public:
  // `target` is 127.0.0.1:PORT. Fails the test if it cannot listen.
  explicit TcpProxy(const std::string& target);
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  std::string address() const;

  // From now on what the server says goes nowhere, while what clients say still reaches it.
  void HoldAnswers();
  // Breaks every connection, and what was held with them; new ones are forwarded as usual.
  void Cut();

 private:
  struct Pair {
    int client = -1;
    int server = -1;
  };

  void Run();
  void Accept() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int target_port_;
  int listener_ = -1;
  int port_ = 0;
  absl::Mutex mutex_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool holding_ ABSL_GUARDED_BY(mutex_) = false;
  std::list<Pair> pairs_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace regroup::harness

#endif  // TESTS_SYSTEM_TCP_PROXY_H_
