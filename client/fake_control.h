// A Control service in this process, on a port of its own: each call does what the test sets.
#ifndef CLIENT_FAKE_CONTROL_H_
#define CLIENT_FAKE_CONTROL_H_

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "regroup/v1/control.grpc.pb.h"

namespace regroup {

inline constexpr absl::Duration kTestDeadline = absl::Seconds(30);

// Set the handlers before the first call. A call without a handler is UNIMPLEMENTED.
class FakeControl : public v1::Control::Service {
 public:
  template <class Request, class Response>
  using Unary = std::function<grpc::Status(grpc::ServerContext*, const Request&, Response*)>;
  template <class Request, class Message>
  using Stream = std::function<grpc::Status(grpc::ServerContext*, const Request&,
                                            grpc::ServerWriter<Message>*)>;

  Unary<v1::GetStatusRequest, v1::GetStatusResponse> get_status;
  Unary<v1::CreateEngineRequest, v1::Operation> create_engine;
  Unary<v1::DescribeEngineRequest, v1::Engine> describe_engine;
  Unary<v1::TraceEngineRequest, v1::EngineTrace> trace_engine;
  Unary<v1::DeleteEngineRequest, v1::Operation> delete_engine;
  Unary<v1::RelayoutEngineRequest, v1::Operation> relayout_engine;
  Unary<v1::SyncEngineRequest, v1::Operation> sync_engine;
  Unary<v1::ExportEngineRequest, v1::Operation> export_engine;
  Unary<v1::ListOperationsRequest, v1::ListOperationsResponse> list_operations;
  Unary<v1::GetOperationRequest, v1::Operation> get_operation;
  Unary<v1::CancelOperationRequest, v1::Operation> cancel_operation;
  Stream<v1::TrainRequest, v1::TrainRecord> train;
  Stream<v1::GenerateRequest, v1::GenerateResponse> generate;
  Stream<v1::GetOperationRequest, v1::Operation> watch_operation;

  // `port` is one that another server had; 0 = a free one.
  explicit FakeControl(int port = 0) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.SetMaxReceiveMessageSize(64 << 20);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeControl() override { Stop(); }

  int port() const { return port_; }
  std::string target() const { return "127.0.0.1:" + std::to_string(port_); }

  // Ends every call that is running, and takes no more.
  void Stop() { server_->Shutdown(absl::ToChronoTime(absl::Now())); }

  // The calls that have arrived, by name, in order.
  std::vector<std::string> calls() const {
    absl::MutexLock lock(&mutex_);
    return calls_;
  }
  int CountCalls(const std::string& name) const {
    absl::MutexLock lock(&mutex_);
    return Count(name);
  }

  // False if there are fewer than `count` calls of that name at the test's deadline.
  bool WaitForCalls(const std::string& name, int count) const {
    absl::MutexLock lock(&mutex_);
    const auto arrived = [&]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return Count(name) >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&arrived), kTestDeadline);
  }

  // For a handler: false if the call is not cancelled before the test's deadline.
  static bool WaitUntilCancelled(grpc::ServerContext* context) {
    const absl::Time deadline = absl::Now() + kTestDeadline;
    while (!context->IsCancelled() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
    return context->IsCancelled();
  }

 private:
  int Count(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return static_cast<int>(std::count(calls_.begin(), calls_.end(), name));
  }

  template <class Handler, class Request, class Reply>
  grpc::Status Handle(const char* name, const Handler& handler, grpc::ServerContext* context,
                      const Request& request, Reply* reply) {
    {
      absl::MutexLock lock(&mutex_);
      calls_.emplace_back(name);
    }
    if (handler == nullptr) return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, name);
    return handler(context, request, reply);
  }

  grpc::Status GetStatus(grpc::ServerContext* c, const v1::GetStatusRequest* q,
                         v1::GetStatusResponse* r) override {
    return Handle("GetStatus", get_status, c, *q, r);
  }
  grpc::Status CreateEngine(grpc::ServerContext* c, const v1::CreateEngineRequest* q,
                            v1::Operation* r) override {
    return Handle("CreateEngine", create_engine, c, *q, r);
  }
  grpc::Status DescribeEngine(grpc::ServerContext* c, const v1::DescribeEngineRequest* q,
                              v1::Engine* r) override {
    return Handle("DescribeEngine", describe_engine, c, *q, r);
  }
  grpc::Status TraceEngine(grpc::ServerContext* c, const v1::TraceEngineRequest* q,
                           v1::EngineTrace* r) override {
    return Handle("TraceEngine", trace_engine, c, *q, r);
  }
  grpc::Status DeleteEngine(grpc::ServerContext* c, const v1::DeleteEngineRequest* q,
                            v1::Operation* r) override {
    return Handle("DeleteEngine", delete_engine, c, *q, r);
  }
  grpc::Status RelayoutEngine(grpc::ServerContext* c, const v1::RelayoutEngineRequest* q,
                              v1::Operation* r) override {
    return Handle("RelayoutEngine", relayout_engine, c, *q, r);
  }
  grpc::Status SyncEngine(grpc::ServerContext* c, const v1::SyncEngineRequest* q,
                          v1::Operation* r) override {
    return Handle("SyncEngine", sync_engine, c, *q, r);
  }
  grpc::Status ExportEngine(grpc::ServerContext* c, const v1::ExportEngineRequest* q,
                            v1::Operation* r) override {
    return Handle("ExportEngine", export_engine, c, *q, r);
  }
  grpc::Status ListOperations(grpc::ServerContext* c, const v1::ListOperationsRequest* q,
                              v1::ListOperationsResponse* r) override {
    return Handle("ListOperations", list_operations, c, *q, r);
  }
  grpc::Status GetOperation(grpc::ServerContext* c, const v1::GetOperationRequest* q,
                            v1::Operation* r) override {
    return Handle("GetOperation", get_operation, c, *q, r);
  }
  grpc::Status CancelOperation(grpc::ServerContext* c, const v1::CancelOperationRequest* q,
                               v1::Operation* r) override {
    return Handle("CancelOperation", cancel_operation, c, *q, r);
  }
  grpc::Status Train(grpc::ServerContext* c, const v1::TrainRequest* q,
                     grpc::ServerWriter<v1::TrainRecord>* w) override {
    return Handle("Train", train, c, *q, w);
  }
  grpc::Status Generate(grpc::ServerContext* c, const v1::GenerateRequest* q,
                        grpc::ServerWriter<v1::GenerateResponse>* w) override {
    return Handle("Generate", generate, c, *q, w);
  }
  grpc::Status WatchOperation(grpc::ServerContext* c, const v1::GetOperationRequest* q,
                              grpc::ServerWriter<v1::Operation>* w) override {
    return Handle("WatchOperation", watch_operation, c, *q, w);
  }

  mutable absl::Mutex mutex_;
  std::vector<std::string> calls_ ABSL_GUARDED_BY(mutex_);
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace regroup

#endif  // CLIENT_FAKE_CONTROL_H_
