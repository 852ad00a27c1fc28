// What the tests of the client library against a fake server share.
#ifndef CLIENT_CLIENT_TEST_UTIL_H_
#define CLIENT_CLIENT_TEST_UTIL_H_

#include <memory>
#include <string>

#include "client/client.h"
#include "client/fake_clock.h"
#include "client/fake_control.h"
#include "gtest/gtest.h"

namespace regroup {

inline const grpc::Status kGone(grpc::StatusCode::UNAVAILABLE, "connection reset");

inline ClientOptions Quick() {
  ClientOptions options;
  options.probe_after = absl::Milliseconds(50);
  return options;
}

inline ClientOptions On(FakeClock* clock) {
  ClientOptions options;
  options.clock = clock;
  return options;
}

inline void ExpectPause(absl::Duration pause, absl::Duration whole) {
  EXPECT_GE(pause, whole / 2);
  EXPECT_LE(pause, whole);
}

inline std::unique_ptr<Client> Connect(const FakeControl& server,
                                       const ClientOptions& options = {}) {
  return *Client::Connect(server.target(), options);
}

inline v1::Operation Running(const std::string& id, int64_t bytes = 0) {
  v1::Operation operation;
  operation.set_id(id);
  operation.set_bytes_moved(bytes);
  return operation;
}

inline v1::Operation Done(const std::string& id) {
  v1::Operation operation = Running(id, 100);
  operation.set_done(true);
  return operation;
}

}  // namespace regroup

#endif  // CLIENT_CLIENT_TEST_UTIL_H_
