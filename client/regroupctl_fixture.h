// What tests of the real binary against a Control service in this process share.
#ifndef CLIENT_REGROUPCTL_FIXTURE_H_
#define CLIENT_REGROUPCTL_FIXTURE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/child_process.h"
#include "client/fake_control.h"
#include "gtest/gtest.h"

namespace regroup {

inline v1::Operation MakeOperation(const std::string& kind, bool done) {
  v1::Operation operation;
  operation.set_id("op-1");
  operation.set_kind(kind);
  operation.set_engine("actor");
  operation.set_phase(done ? "done" : "load");
  operation.set_done(done);
  operation.set_seconds(3.1);
  operation.set_bytes_moved(done ? 200000000 : 50000000);
  operation.set_bytes_total(200000000);
  return operation;
}

inline grpc::Status WatchToTheEnd(grpc::ServerContext*, const v1::GetOperationRequest&,
                                  grpc::ServerWriter<v1::Operation>* writer) {
  writer->Write(MakeOperation("create", false));
  writer->Write(MakeOperation("create", true));
  return grpc::Status::OK;
}

class RegroupctlTest : public ::testing::Test {
 protected:
  struct Result {
    int code;
    std::string out, err;
  };

  std::unique_ptr<ChildProcess> Start(const std::vector<std::string>& arguments,
                                      bool terminal = false,
                                      std::vector<std::string> environment = {}) {
    environment.push_back("REGROUP_SERVER=" + server_.target());
    return std::make_unique<ChildProcess>(
        "client/regroupctl", arguments,
        ChildProcess::Options{std::move(environment), terminal, ""});
  }

  Result RunCtl(const std::vector<std::string>& arguments) {
    const auto child = Start(arguments);
    const int code = child->Wait();
    return {code, child->out(), child->err()};
  }

  // Accepts every create, and keeps what was asked for.
  void AcceptCreate() {
    server_.create_engine = [this](grpc::ServerContext*, const v1::CreateEngineRequest& request,
                                   v1::Operation* operation) {
      created_ = request;
      *operation = MakeOperation("create", false);
      return grpc::Status::OK;
    };
    server_.watch_operation = WatchToTheEnd;
    server_.describe_engine = [](grpc::ServerContext*, const v1::DescribeEngineRequest& request,
                                 v1::Engine* engine) {
      engine->set_name(request.name());
      engine->set_parameters(134515008);
      engine->set_step(2);
      return grpc::Status::OK;
    };
  }

  FakeControl server_;
  v1::CreateEngineRequest created_;
  const std::vector<std::string> create_ = {
      "engine",   "create", "actor", "--ranks=2,1", "--model=mlp:in=8,hidden=16,layers=2,out=4",
      "--lr=1e-5"};
};

}  // namespace regroup

#endif  // CLIENT_REGROUPCTL_FIXTURE_H_
