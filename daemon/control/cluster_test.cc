#include "daemon/control/cluster.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "daemon/control/fake_cluster.h"
#include "gmock/gmock.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

using ::testing::HasSubstr;

// The daemon of a joined node that says what the test wants, or nothing.
class FakeAgent final : public v1::Agent::Service {
 public:
  explicit FakeAgent(uint64_t incarnation) : incarnation_(incarnation) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }

  grpc::Status GetNode(grpc::ServerContext*, const v1::GetNodeRequest* request,
                       v1::NodeReport* response) override {
    absl::MutexLock lock(&mutex_);
    if (silent_) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "silent");
    if (request->incarnation() != incarnation_) {
      return grpc::Status(grpc::StatusCode::ABORTED, "another incarnation");
    }
    *response = report_;
    return grpc::Status::OK;
  }
  grpc::Status KillWorker(grpc::ServerContext*, const v1::KillWorkerRequest* request,
                          v1::KillWorkerResponse*) override {
    absl::MutexLock lock(&mutex_);
    killed_ = request->rank();
    return grpc::Status::OK;
  }

  void Report(const v1::NodeReport& report) {
    absl::MutexLock lock(&mutex_);
    report_ = report;
  }
  void SetSilent(bool silent) {
    absl::MutexLock lock(&mutex_);
    silent_ = silent;
  }
  bool AwaitKill(int rank) {
    absl::MutexLock lock(&mutex_);
    const auto killed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return killed_ == rank; };
    return mutex_.AwaitWithTimeout(absl::Condition(&killed), kPatience);
  }
  const std::string& address() const { return address_; }

 private:
  const uint64_t incarnation_;
  absl::Mutex mutex_;
  v1::NodeReport report_ ABSL_GUARDED_BY(mutex_);
  bool silent_ ABSL_GUARDED_BY(mutex_) = false;
  int killed_ ABSL_GUARDED_BY(mutex_) = -1;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

v1::NodeReport Ready(int rank, uint64_t incarnation) {
  v1::NodeReport report;
  v1::RankReport& row = *report.add_ranks();
  row.set_rank(rank);
  row.set_state(v1::RANK_STATE_READY);
  row.set_pid(static_cast<int>(incarnation));
  row.set_incarnation(incarnation);
  row.mutable_worker()->set_incarnation(incarnation);
  return report;
}

class ClusterTest : public ::testing::Test {
 protected:
  ClusterTest() : cluster_(&home_.control(), &home_.ranks(), Options()) {}

  static NodeWatcherOptions Options() {
    NodeWatcherOptions options;
    options.interval = absl::Milliseconds(5);
    options.silence = absl::Seconds(1);
    return options;
  }

  static v1::JoinRequest Request(const FakeAgent& agent, uint64_t incarnation, int ranks = 1) {
    v1::JoinRequest request;
    request.set_node("b");
    request.set_address(agent.address());
    request.set_ranks(ranks);
    request.set_any_first_rank(true);
    request.set_incarnation(incarnation);
    return request;
  }

  bool AwaitRank(int rank, v1::RankState state, int pid = -1) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (absl::Now() < deadline) {
      for (const RankInfo& info : home_.ranks().List()) {
        if (info.rank == rank && info.state == state && (pid < 0 || info.pid == pid)) return true;
      }
      absl::SleepFor(absl::Milliseconds(5));
    }
    return false;
  }

  RankInfo Rank(int rank) { return home_.ranks().List().at(rank); }

  FakeCluster home_{2};  // ranks 0 and 1
  Cluster cluster_;
};

TEST_F(ClusterTest, Join_MirrorsTheNodesRanks) {
  FakeAgent agent(7);
  const absl::StatusOr<v1::JoinResponse> joined = cluster_.Join(Request(agent, 7));
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ(joined->first_rank(), 2);
  EXPECT_EQ(joined->primary(), "a");
  EXPECT_EQ(Rank(2).state, v1::RANK_STATE_STARTING);
  agent.Report(Ready(2, 100));
  ASSERT_TRUE(AwaitRank(2, v1::RANK_STATE_READY, 100));
  // A new process between two looks: the old one is lost, as it ended there.
  v1::NodeReport report = Ready(2, 101);
  report.mutable_ranks(0)->set_how("rank 2 (pid 100) was killed by SIGSEGV");
  report.mutable_ranks(0)->set_error("rank 2 (pid 100) was killed by SIGSEGV; it wrote: ouch");
  agent.Report(report);
  ASSERT_TRUE(AwaitRank(2, v1::RANK_STATE_READY, 101));
  EXPECT_THAT(Rank(2).error, HasSubstr("ouch"));
  EXPECT_EQ(home_.ranks().Find({2, 100}).status().message(),
            "rank 2 (pid 100) was killed by SIGSEGV");
  cluster_.Kill({2, 101}, "test");
  EXPECT_TRUE(agent.AwaitKill(2));
  report.mutable_ranks(0)->set_state(v1::RANK_STATE_LOST);
  agent.Report(report);
  EXPECT_TRUE(AwaitRank(2, v1::RANK_STATE_LOST));
}

TEST_F(ClusterTest, Report_OfRanksThatAreNotTheNodes_IsIgnored) {
  FakeAgent agent(7);
  ASSERT_TRUE(cluster_.Join(Request(agent, 7)).ok());
  v1::NodeReport report = Ready(0, 100);
  *report.add_ranks() = Ready(2, 100).ranks(0);
  agent.Report(report);
  ASSERT_TRUE(AwaitRank(2, v1::RANK_STATE_READY, 100));
  EXPECT_EQ(Rank(0).pid, 1000);
}

TEST_F(ClusterTest, Silence_LosesTheNodeAndItComesBack) {
  FakeAgent agent(7);
  ASSERT_TRUE(cluster_.Join(Request(agent, 7)).ok());
  agent.Report(Ready(2, 100));
  ASSERT_TRUE(AwaitRank(2, v1::RANK_STATE_READY));
  agent.SetSilent(true);
  ASSERT_TRUE(AwaitRank(2, v1::RANK_STATE_LOST));
  EXPECT_THAT(Rank(2).error, HasSubstr("rank 2 is lost with node b: nothing was heard"));
  EXPECT_EQ(home_.control().nodes().Find("b")->state, v1::NODE_STATE_LOST);
  agent.SetSilent(false);
  ASSERT_TRUE(AwaitRank(2, v1::RANK_STATE_READY, 100));
}

TEST_F(ClusterTest, Join_TwiceByOneDaemon_ChangesNothing) {
  FakeAgent agent(7);
  ASSERT_TRUE(cluster_.Join(Request(agent, 7)).ok());
  agent.Report(Ready(2, 100));
  ASSERT_TRUE(AwaitRank(2, v1::RANK_STATE_READY));
  EXPECT_EQ(cluster_.Join(Request(agent, 7))->first_rank(), 2);
  EXPECT_EQ(Rank(2).state, v1::RANK_STATE_READY);
}

TEST_F(ClusterTest, Join_ByTheNameOfALivingDaemon_IsRefused) {
  FakeAgent agent(7);
  ASSERT_TRUE(cluster_.Join(Request(agent, 7)).ok());
  FakeAgent second(8);
  const absl::Status refused = cluster_.Join(Request(second, 8)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(refused.message(), HasSubstr(agent.address()));
  v1::JoinRequest own = Request(second, 8);
  own.set_node("a");
  EXPECT_EQ(cluster_.Join(own).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(ClusterTest, Join_AfterTheDaemonBeforeIsSilent_TakesItsRanks) {
  FakeAgent agent(7);
  ASSERT_TRUE(cluster_.Join(Request(agent, 7)).ok());
  agent.Report(Ready(2, 100));
  ASSERT_TRUE(AwaitRank(2, v1::RANK_STATE_READY));
  agent.SetSilent(true);
  FakeAgent second(8);
  EXPECT_EQ(cluster_.Join(Request(second, 8, 3)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(cluster_.Join(Request(second, 8))->first_rank(), 2);
  second.Report(Ready(2, 200));
  EXPECT_TRUE(AwaitRank(2, v1::RANK_STATE_READY, 200));
}

TEST_F(ClusterTest, Join_OfTheOtherAddressFamily_IsRefused) {
  FakeAgent agent(7);
  Cluster over_v6(&home_.control(), &home_.ranks(), Options(), "fd00::1");
  const absl::Status refused = over_v6.Join(Request(agent, 7)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("node a meet at fd00::1"));
  EXPECT_TRUE(over_v6.Join(Request(agent, 7, /*ranks=*/0)).ok()) << "it has nobody to meet";
}

// A primary that lost its state must not take the ranks, and drop what they hold.
TEST_F(ClusterTest, Join_NodeOfAnotherCluster_IsRefused) {
  FakeAgent agent(7);
  Cluster cluster(&home_.control(), &home_.ranks(), Options(), "", /*id=*/5);
  v1::JoinRequest request = Request(agent, 7);
  request.set_cluster(6);
  const absl::Status refused = cluster.Join(request).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("--state-dir"));
  request.set_cluster(5);
  const auto joined = cluster.Join(request);
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ(joined->cluster(), 5u);
}

TEST_F(ClusterTest, Join_BadFields_AreNamed) {
  FakeAgent agent(7);
  v1::JoinRequest request = Request(agent, 7);
  request.set_node("b b");
  EXPECT_THAT(cluster_.Join(request).status().message(), HasSubstr("--node=b b"));
  request = Request(agent, 7, 1025);
  EXPECT_THAT(cluster_.Join(request).status().message(), HasSubstr("--ranks=1025"));
  request = Request(agent, 0);
  EXPECT_THAT(cluster_.Join(request).status().message(), HasSubstr("incarnation"));
  request = Request(agent, 7);
  request.clear_address();
  EXPECT_THAT(cluster_.Join(request).status().message(), HasSubstr("address"));
  EXPECT_EQ(home_.control().nodes().List().size(), 1u);
}

}  // namespace
}  // namespace regroup
