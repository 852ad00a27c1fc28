#include "daemon/control/control_service.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "daemon/control/stream_writer.h"
#include "daemon/control/watch_stream.h"
#include "proto/rpc_deadline.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

using Unary = grpc::ServerUnaryReactor;

constexpr absl::Duration kMaxTraceWait = absl::Seconds(30);
constexpr char kOperationKey[] = "regroup-operation";

// Answers at once with what `answer` returns.
template <typename Answer>
Unary* AnswerNow(grpc::CallbackServerContext* context, Answer answer) {
  const absl::StatusOr<absl::Duration> left = TimeLeft(*context);
  return Reply(context, left.ok() ? answer() : left.status());
}

template <typename T>
absl::Status Put(absl::StatusOr<T> value, T* response) {
  if (!value.ok()) return value.status();
  *response = *std::move(value);
  return absl::OkStatus();
}

}  // namespace

template <typename Request>
Unary* ControlService::Accept(Context* context, const Request* request, v1::Operation* response,
                              absl::StatusOr<v1::Operation> (Control::*accept)(const Request&)) {
  const absl::StatusOr<absl::Duration> left = TimeLeft(*context);
  if (!left.ok()) return Reply(context, left.status());
  Unary* reactor = context->DefaultReactor();
  const absl::Status started = control_->StartTask([this, request, response, accept, reactor] {
    reactor->Finish(ToGrpc(Put((control_->*accept)(*request), response)));
  });
  if (!started.ok()) reactor->Finish(ToGrpc(started));
  return reactor;
}

Unary* ControlService::GetStatus(Context* context, const v1::GetStatusRequest*,
                                 v1::GetStatusResponse* response) {
  return AnswerNow(context, [&] {
    *response = control_->Status();
    return absl::OkStatus();
  });
}

Unary* ControlService::CreateEngine(Context* context, const v1::CreateEngineRequest* request,
                                    v1::Operation* response) {
  return Accept(context, request, response, &Control::CreateEngine);
}

Unary* ControlService::DescribeEngine(Context* context, const v1::DescribeEngineRequest* request,
                                      v1::Engine* response) {
  return AnswerNow(context,
                   [&] { return Put(control_->DescribeEngine(request->name()), response); });
}

Unary* ControlService::TraceEngine(Context* context, const v1::TraceEngineRequest* request,
                                   v1::EngineTrace* response) {
  const absl::StatusOr<absl::Duration> left = TimeLeft(*context);
  if (!left.ok()) return Reply(context, left.status());
  Unary* reactor = context->DefaultReactor();
  control_->TraceEngine(*request, std::min(*left, kMaxTraceWait),
                        [reactor, response](absl::StatusOr<v1::EngineTrace> trace) {
                          reactor->Finish(ToGrpc(Put(std::move(trace), response)));
                        });
  return reactor;
}

Unary* ControlService::DeleteEngine(Context* context, const v1::DeleteEngineRequest* request,
                                    v1::Operation* response) {
  return Accept(context, request, response, &Control::DeleteEngine);
}

Unary* ControlService::RelayoutEngine(Context* context, const v1::RelayoutEngineRequest* request,
                                      v1::Operation* response) {
  return Accept(context, request, response, &Control::RelayoutEngine);
}

Unary* ControlService::SyncEngine(Context* context, const v1::SyncEngineRequest* request,
                                  v1::Operation* response) {
  return Accept(context, request, response, &Control::SyncEngine);
}

Unary* ControlService::ExportEngine(Context* context, const v1::ExportEngineRequest* request,
                                    v1::Operation* response) {
  return Accept(context, request, response, &Control::ExportEngine);
}

Unary* ControlService::SetEngine(Context* context, const v1::SetEngineRequest* request,
                                 v1::Operation* response) {
  return Accept(context, request, response, &Control::SetEngine);
}

Unary* ControlService::SaveCheckpoint(Context* context, const v1::CheckpointRequest*,
                                      v1::Operation*) {
  return AnswerNow(context, [] { return NotAvailable("checkpoint save"); });
}

Unary* ControlService::LoadCheckpoint(Context* context, const v1::CheckpointRequest*,
                                      v1::Operation*) {
  return AnswerNow(context, [] { return NotAvailable("checkpoint load"); });
}

grpc::ServerWriteReactor<v1::TrainRecord>* ControlService::Train(Context* context,
                                                                 const v1::TrainRequest* request) {
  auto cancellation = std::make_shared<Cancellation>();
  auto* writer = new StreamWriter<v1::TrainRecord>(cancellation);
  const absl::Status started =
      control_->StartTask([this, context, request = *request, cancellation, writer] {
        writer->Close(control_->Train(
            request, cancellation,
            [&](const std::string& id) { writer->SendMetadata(context, kOperationKey, id); },
            [&](const v1::TrainRecord& record) { return writer->Push(record); }));
      });
  if (!started.ok()) writer->Close(started);
  return writer;
}

grpc::ServerWriteReactor<v1::GenerateResponse>* ControlService::Generate(
    Context* context, const v1::GenerateRequest* request) {
  auto cancellation = std::make_shared<Cancellation>();
  auto* writer = new StreamWriter<v1::GenerateResponse>(cancellation);
  const absl::Status started =
      control_->StartTask([this, context, request = *request, cancellation, writer] {
        writer->Close(control_->Generate(
            request, cancellation,
            [&](const std::string& id) { writer->SendMetadata(context, kOperationKey, id); },
            [&](const v1::GenerateResponse& response) { return writer->Push(response); }));
      });
  if (!started.ok()) writer->Close(started);
  return writer;
}

Unary* ControlService::ListOperations(Context* context, const v1::ListOperationsRequest*,
                                      v1::ListOperationsResponse* response) {
  return AnswerNow(context, [&] {
    for (v1::Operation& operation : control_->operations().List()) {
      *response->add_operations() = std::move(operation);
    }
    return absl::OkStatus();
  });
}

Unary* ControlService::GetOperation(Context* context, const v1::GetOperationRequest* request,
                                    v1::Operation* response) {
  return AnswerNow(context,
                   [&] { return Put(control_->operations().Get(request->id()), response); });
}

grpc::ServerWriteReactor<v1::Operation>* ControlService::WatchOperation(
    Context*, const v1::GetOperationRequest* request) {
  return new WatchStream(&control_->operations(), request->id());
}

Unary* ControlService::CancelOperation(Context* context, const v1::CancelOperationRequest* request,
                                       v1::Operation* response) {
  return Accept(context, request, response, &Control::CancelOperation);
}

}  // namespace regroup
