// The services that gRPC's own tools ask: health, and reflection.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>

#include "google/protobuf/descriptor.pb.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/security/credentials.h"
#include "standard_services.pb.h"
#include "tests/system/fixtures.h"

namespace regroup::harness {
namespace {

constexpr char kControl[] = "regroup.v1.Control";
constexpr int kServing = 1;
constexpr int kNotServing = 2;

template <typename Request, typename Response>
class Caller {
 public:
  explicit Caller(const std::string& server)
      : stub_(grpc::CreateChannel(server, grpc::InsecureChannelCredentials())) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  }
  ~Caller() {
    queue_.Shutdown();
    Next();
  }

  grpc::Status Unary(const std::string& method, const Request& request, Response* response) {
    const auto call = stub_.PrepareUnaryCall(&context_, method, request, &queue_);
    call->StartCall();
    grpc::Status status;
    call->Finish(response, &status, this);
    EXPECT_TRUE(Next());
    return status;
  }

  // One question and one answer of a stream.
  bool Ask(const std::string& method, const Request& request, Response* response) {
    const auto call = stub_.PrepareCall(&context_, method, &queue_);
    call->StartCall(this);
    bool good = Next();
    call->Write(request, this);
    good = Next() && good;
    call->Read(response, this);
    good = Next() && good;
    call->WritesDone(this);
    Next();
    grpc::Status status;
    call->Finish(&status, this);
    Next();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return good;
  }

 private:
  bool Next() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::TemplatedGenericStub<Request, Response> stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
};

class StandardServicesTest : public ::testing::Test {
 protected:
  static std::unique_ptr<Daemon> Start() {
    DaemonOptions options;
    options.ranks = 1;
    options.data_root = Data().root;
    return Daemon::Start(options);
  }

  // 0 if nothing is known of the service; -1 if there is no answer.
  static int Health(const std::string& server, const std::string& service) {
    HealthRequest request;
    request.set_service(service);
    HealthResponse response;
    const grpc::Status status = Caller<HealthRequest, HealthResponse>(server).Unary(
        "/grpc.health.v1.Health/Check", request, &response);
    if (status.error_code() == grpc::StatusCode::NOT_FOUND) return 0;
    return status.ok() ? response.status() : -1;
  }

  static ReflectionResponse Reflect(const std::string& server, const ReflectionRequest& request) {
    ReflectionResponse response;
    EXPECT_TRUE((Caller<ReflectionRequest, ReflectionResponse>(server).Ask(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", request, &response)));
    return response;
  }
};

TEST_F(StandardServicesTest, Health_IsServingOnceTheDaemonListens) {
  const auto daemon = Start();
  ASSERT_NE(daemon, nullptr);
  // It is said right after "listening on".
  EXPECT_TRUE(
      WaitUntil(absl::Seconds(20), [&] { return Health(daemon->address(), "") == kServing; }));
  EXPECT_TRUE(WaitUntil(absl::Seconds(20),
                        [&] { return Health(daemon->address(), kControl) == kServing; }));
  EXPECT_EQ(Health(daemon->address(), "regroup.v1.Nothing"), 0);
}

// A step that stands still, because its worker does, is still waited for.
TEST_F(StandardServicesTest, Sigterm_SaysNotServingAndFinishesTheStep) {
  const auto daemon = Start();
  ASSERT_NE(daemon, nullptr);
  const Cli cli(*daemon);
  cli.Create("e", "0", kMlpSpec, {"--lr=0.1"});
  const auto train = cli.ctl().Start(TrainCommand("e", {Data().mlp_path, 1000000000, 4, 0, {}}));
  ASSERT_TRUE(WaitUntil(absl::Seconds(30), [&] { return !train->OutputLines().empty(); }))
      << train->Errors();
  const pid_t worker = daemon->WorkerPid(0);
  ASSERT_EQ(kill(worker, SIGSTOP), 0);
  int64_t steps = 0;
  EXPECT_TRUE(WaitUntil(absl::Seconds(30), [&] {
    steps = static_cast<int64_t>(train->OutputLines().size());
    return cli.Row("e").value("step", int64_t{0}) == steps;
  }));
  daemon->process().Signal(SIGTERM);
  EXPECT_TRUE(
      WaitUntil(absl::Seconds(30), [&] { return Health(daemon->address(), "") == kNotServing; }));
  ASSERT_EQ(kill(worker, SIGCONT), 0);
  EXPECT_EQ(daemon->process().Finish(absl::Seconds(60)), 0) << daemon->process().Errors();
  EXPECT_EQ(train->Finish(absl::Seconds(60)), 1);
  EXPECT_EQ(static_cast<int64_t>(train->OutputLines().size()), steps + 1) << train->Errors();
  EXPECT_EQ(daemon->process().Errors().find("SIGKILL"), std::string::npos)
      << daemon->process().Errors();
}

TEST_F(StandardServicesTest, Reflection_DescribesTheControlService) {
  const auto daemon = Start();
  ASSERT_NE(daemon, nullptr);
  ReflectionRequest list;
  list.set_list_services("*");
  std::set<std::string> names;
  const ReflectionResponse listed = Reflect(daemon->address(), list);
  for (const auto& service : listed.services().services()) {
    names.insert(service.name());
  }
  EXPECT_EQ(names.count(kControl), 1u);
  EXPECT_EQ(names.count("grpc.health.v1.Health"), 1u);

  ReflectionRequest file;
  file.set_file_containing_symbol(kControl);
  std::set<std::string> methods;
  const ReflectionResponse described = Reflect(daemon->address(), file);
  for (const std::string& bytes : described.file().descriptors()) {
    google::protobuf::FileDescriptorProto descriptor;
    ASSERT_TRUE(descriptor.ParseFromString(bytes));
    for (const auto& service : descriptor.service()) {
      for (const auto& method : service.method()) methods.insert(method.name());
    }
  }
  EXPECT_EQ(methods.count("CreateEngine"), 1u);
  EXPECT_EQ(methods.count("Train"), 1u);
}

}  // namespace
}  // namespace regroup::harness
