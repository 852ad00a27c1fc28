// The C++ client library against a real daemon, over connections that break; and the example that
// is built on it.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "tests/system/fixtures.h"
#include "tests/system/tcp_proxy.h"

namespace regroup::harness {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr int64_t kForever = 1000000;

class LibraryTest : public FixtureTest {
 protected:
  static void SetUpTestSuite() { StartDaemonOnFixtures(3); }

  void SetUp() override {
    FixtureTest::SetUp();
    client_ = *Client::Connect(daemon().address());
  }

  static v1::CreateEngineRequest Create(const std::string& name, v1::Role role,
                                        const std::vector<int>& ranks) {
    v1::CreateEngineRequest request;
    v1::EngineSpec& spec = *request.mutable_spec();
    spec.set_name(name);
    spec.set_role(role);
    spec.set_model(Data().untied.folder);
    *spec.mutable_layout()->mutable_ranks() = {ranks.begin(), ranks.end()};
    if (role == v1::ROLE_TRAIN) {
      spec.mutable_optimizer()->set_name("sgd");
      spec.mutable_optimizer()->set_learning_rate(0.1);
    }
    return request;
  }

  static v1::TrainRequest Train(const std::string& name, int64_t steps) {
    v1::TrainRequest request;
    request.set_name(name);
    request.set_data(Data().text.path);
    request.set_steps(steps);
    request.set_batch(4);
    request.set_seq(kSeq);
    return request;
  }

  // Operations of `kind` on `engine`, whatever became of them.
  int Count(const std::string& kind, const std::string& engine) {
    const auto list = client_->ListOperations();
    EXPECT_TRUE(list.ok()) << list.status();
    int count = 0;
    for (const v1::Operation& operation : list->operations()) {
      count += operation.kind() == kind && operation.engine() == engine ? 1 : 0;
    }
    return count;
  }

  std::unique_ptr<Client> client_;
};

TEST_F(LibraryTest, Finish_ShowsProgressAndReturnsErrors) {
  std::vector<std::string> phases;
  const auto created =
      client_->Finish(client_->CreateEngine(Create("e", v1::ROLE_TRAIN, {0, 1})),
                      [&](const v1::Operation& operation) { phases.push_back(operation.phase()); });
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_TRUE(created->done());
  ASSERT_FALSE(phases.empty());
  EXPECT_EQ(phases.back(), "done");

  const absl::Status again =
      client_->Finish(client_->CreateEngine(Create("e", v1::ROLE_TRAIN, {0}))).status();
  EXPECT_TRUE(absl::IsAlreadyExists(again)) << again;
  EXPECT_TRUE(DetailOf(again).has_value());

  v1::RelayoutEngineRequest stale;
  stale.set_name("e");
  stale.mutable_layout()->add_ranks(0);
  stale.set_expected_generation(7);
  const absl::Status refused = client_->Finish(client_->RelayoutEngine(stale)).status();
  EXPECT_TRUE(absl::IsAborted(refused)) << refused;
}

TEST_F(LibraryTest, AnswerLost_MutationIsSentAgainAndRunsOnce) {
  TcpProxy proxy(daemon().address());
  ClientOptions options;
  options.max_attempts = 1000;
  options.call_timeout = kPatience;
  const auto client = *Client::Connect(proxy.address(), options);
  ASSERT_TRUE(client->GetStatus().ok());
  proxy.HoldAnswers();
  absl::StatusOr<v1::Operation> accepted;
  std::thread creating(
      [&] { accepted = client->CreateEngine(Create("once", v1::ROLE_TRAIN, {0})); });
  EXPECT_TRUE(WaitUntil(kPatience, [&] { return Count("create", "once") == 1; }));
  proxy.Cut();
  creating.join();
  const auto created = client->Finish(accepted);
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_EQ(Count("create", "once"), 1);
}

TEST_F(LibraryTest, ConnectionBreaks_TrainIsNotSentAgain) {
  ASSERT_TRUE(client_->Finish(client_->CreateEngine(Create("e", v1::ROLE_TRAIN, {0, 1}))).ok());
  TcpProxy proxy(daemon().address());
  ClientOptions options;
  options.max_attempts = 1000;
  const auto client = *Client::Connect(proxy.address(), options);
  std::string id;
  const absl::Status status = client->Train(
      Train("e", kForever), [&](const v1::TrainRecord&) { proxy.Cut(); }, {}, &id);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_FALSE(DetailOf(status).has_value());
  v1::Operation operation;
  operation.set_id(id);
  // Through the same client, which connects again. The daemon ends the run after a step.
  const auto ended = client->Wait(operation);
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_TRUE(absl::IsCancelled(OutcomeOf(*ended))) << ended->error();
  EXPECT_EQ(Count("train", "e"), 1);
  EXPECT_EQ(client->DescribeEngine("e")->state(), v1::ENGINE_STATE_READY);
}

TEST_F(LibraryTest, TrainCancelled_EveryStepThatWasTakenIsSeen) {
  ASSERT_TRUE(client_->Finish(client_->CreateEngine(Create("e", v1::ROLE_TRAIN, {0, 1}))).ok());
  absl::Notification cancel;
  int64_t step = 0;
  const absl::Status status = client_->Train(Train("e", kForever),
                                             [&](const v1::TrainRecord& record) {
                                               EXPECT_EQ(record.step(), step + 1);
                                               step = record.step();
                                               if (step == 3) cancel.Notify();
                                             },
                                             {&cancel, {}});
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_GE(step, 3);
  EXPECT_EQ(client_->DescribeEngine("e")->step(), step);
}

TEST_F(LibraryTest, TrainTimeout_EndsTheRun) {
  ASSERT_TRUE(client_->Finish(client_->CreateEngine(Create("e", v1::ROLE_TRAIN, {0}))).ok());
  CallOptions call;
  call.timeout = absl::Seconds(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(client_->Train(Train("e", kForever), nullptr, call)));
  EXPECT_TRUE(WaitUntil(kPatience, [&] { return client_->DescribeEngine("e")->activity() == ""; }));
}

// From the client through the daemon to the worker: more than gRPC's usual 4 MB.
TEST_F(LibraryTest, LargeRequest_IsServed) {
  ASSERT_TRUE(client_->Finish(client_->CreateEngine(Create("r", v1::ROLE_INFER, {2}))).ok());
  v1::GenerateRequest request;
  request.set_name("r");
  request.set_max_tokens(2);
  request.set_top_p(1);
  request.add_prompts()->add_tokens(5);
  for (int i = 0; i < 2500000; ++i) request.add_stop_tokens(256);
  ASSERT_GT(request.ByteSizeLong(), 4 << 20);
  const auto response = client_->Generate(request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_GE(response->outputs(0).tokens_size(), 1);
}

TEST_F(LibraryTest, Controller_TrainsMovesSyncsAndGenerates) {
  const auto controller = Process::Start({Runfile("examples/controller"), daemon().address(),
                                          Data().untied.folder, Data().text.path, "3"});
  ASSERT_NE(controller, nullptr);
  EXPECT_EQ(controller->Finish(kPatience), 0) << controller->Errors();
  std::vector<std::string> expected;
  int64_t step = 0;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 2; ++i) expected.push_back(absl::StrCat("step ", ++step, ": loss "));
    // One at the engine's creation, and one with each step.
    for (int i = 0; i < 3; ++i) expected.push_back(absl::StrCat("weights version ", step + 1, ":"));
  }
  const std::vector<std::string> lines = controller->OutputLines();
  ASSERT_EQ(lines.size(), expected.size()) << controller->Output();
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_TRUE(absl::StartsWith(lines[i], expected[i])) << lines[i];
  }
  EXPECT_EQ(client_->DescribeEngine("actor")->generation(), 7)
      << "created, and moved twice a round";
}

}  // namespace
}  // namespace regroup::harness
