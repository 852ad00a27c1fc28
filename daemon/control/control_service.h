// The Control service over gRPC: from calls to Control and back, nothing else.
#ifndef DAEMON_CONTROL_CONTROL_SERVICE_H_
#define DAEMON_CONTROL_CONTROL_SERVICE_H_

#include "daemon/control/control.h"
#include "regroup/v1/control.grpc.pb.h"

namespace regroup {

// Thread safe. No call blocks a thread of gRPC.
class ControlService final : public v1::Control::CallbackService {
 public:
  explicit ControlService(Control* control) : control_(control) {}  // which outlives this

  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;

  Unary* GetStatus(Context* context, const v1::GetStatusRequest* request,
                   v1::GetStatusResponse* response) override;
  Unary* CreateEngine(Context* context, const v1::CreateEngineRequest* request,
                      v1::Operation* response) override;
  Unary* DescribeEngine(Context* context, const v1::DescribeEngineRequest* request,
                        v1::Engine* response) override;
  Unary* TraceEngine(Context* context, const v1::TraceEngineRequest* request,
                     v1::EngineTrace* response) override;
  Unary* DeleteEngine(Context* context, const v1::DeleteEngineRequest* request,
                      v1::Operation* response) override;
  Unary* RelayoutEngine(Context* context, const v1::RelayoutEngineRequest* request,
                        v1::Operation* response) override;
  Unary* SyncEngine(Context* context, const v1::SyncEngineRequest* request,
                    v1::Operation* response) override;
  Unary* ExportEngine(Context* context, const v1::ExportEngineRequest* request,
                      v1::Operation* response) override;
  Unary* SetEngine(Context* context, const v1::SetEngineRequest* request,
                   v1::Operation* response) override;
  Unary* SaveCheckpoint(Context* context, const v1::CheckpointRequest* request,
                        v1::Operation* response) override;
  Unary* LoadCheckpoint(Context* context, const v1::CheckpointRequest* request,
                        v1::Operation* response) override;
  grpc::ServerWriteReactor<v1::TrainRecord>* Train(Context* context,
                                                   const v1::TrainRequest* request) override;
  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      Context* context, const v1::GenerateRequest* request) override;
  Unary* ListOperations(Context* context, const v1::ListOperationsRequest* request,
                        v1::ListOperationsResponse* response) override;
  Unary* GetOperation(Context* context, const v1::GetOperationRequest* request,
                      v1::Operation* response) override;
  grpc::ServerWriteReactor<v1::Operation>* WatchOperation(
      Context* context, const v1::GetOperationRequest* request) override;
  Unary* CancelOperation(Context* context, const v1::CancelOperationRequest* request,
                         v1::Operation* response) override;

 private:
  // Accepts a mutation on a thread of its own.
  template <typename Request>
  Unary* Accept(Context* context, const Request* request, v1::Operation* response,
                absl::StatusOr<v1::Operation> (Control::*accept)(const Request&));

  Control* const control_;
};

}  // namespace regroup

#endif  // DAEMON_CONTROL_CONTROL_SERVICE_H_
