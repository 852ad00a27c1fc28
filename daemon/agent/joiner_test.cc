#include "daemon/agent/joiner.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"
#include "daemon/node/fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace regroup {
namespace {

using ::testing::HasSubstr;

// A port at which nobody answers: connections are refused, or accepted and left alone.
class SilentPort {
 public:
  explicit SilentPort(bool listens) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(socket_.get(), generic, size), 0);
    if (listens) {
      EXPECT_EQ(listen(socket_.get(), 16), 0);
    }
    EXPECT_EQ(getsockname(socket_.get(), generic, &size), 0);
    name_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  }
  const std::string& name() const { return name_; }

 private:
  const Fd socket_;
  std::string name_;
};

JoinerOptions Impatient(const std::string& primary) {
  JoinerOptions options;
  options.primary = primary;
  options.patience = absl::Milliseconds(400);
  options.call = absl::Milliseconds(100);
  options.min_backoff = absl::Milliseconds(20);
  return options;
}

TEST(JoinerTest, JoinFirst_NobodyAnswers_EndsWithItsPatienceAndSaysWhatItTried) {
  for (const bool listens : {false, true}) {
    const SilentPort port(listens);
    Joiner joiner(Impatient(port.name()), {});
    const absl::Time start = absl::Now();
    const absl::Status status = joiner.JoinFirst([] { return false; }).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("--join=", port.name(), ": ")));
    EXPECT_THAT(status.message(), HasSubstr("no primary took this node in for 400ms: "));
    EXPECT_LT(absl::Now() - start, absl::Seconds(30));
  }
}

TEST(JoinerTest, JoinFirst_Stopped_EndsAtOnce) {
  const SilentPort port(/*listens=*/true);
  JoinerOptions options = Impatient(port.name());
  options.patience = options.call = absl::Hours(1);
  Joiner joiner(options, {});
  EXPECT_EQ(joiner.JoinFirst([] { return true; }).status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace regroup
