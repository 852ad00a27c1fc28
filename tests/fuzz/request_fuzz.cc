// The first byte chooses the request; the rest is its serialized form.
#include "absl/status/status.h"
#include "daemon/control/validate.h"
#include "proto/rpc_status.h"
#include "regroup/v1/control.pb.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using namespace regroup;  // NOLINT: one target, one file

const RequestLimits& Limits() {
  static const RequestLimits& limits = *[] {
    auto* made = new RequestLimits;
    made->ranks = 4;
    made->roots = *DataRoots::Make({"/dev/shm"});
    return made;
  }();
  return limits;
}

// An error of a request says what is wrong, in a form that travels.
void CheckError(const absl::Status& status) {
  if (status.ok()) return;
  Require(!status.message().empty() && status.message().size() < 8192, "a message of some size");
  Require(DetailOf(status).has_value(), "an error of a request has a detail");
}

template <typename Request>
bool Parse(const uint8_t* data, size_t size, Request* request) {
  return request->ParseFromArray(data, static_cast<int>(size));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const int kind = *data++ % 7;
  --size;
  if (kind == 0) {
    v1::CreateEngineRequest request;
    if (Parse(data, size, &request)) CheckError(CheckCreate(request, Limits()).status());
  } else if (kind == 1) {
    v1::RelayoutEngineRequest request;
    if (Parse(data, size, &request)) CheckError(CheckRelayout(request, Limits()).status());
  } else if (kind == 2) {
    v1::TrainRequest request;
    if (Parse(data, size, &request)) CheckError(CheckTrain(request, Limits()).status());
  } else if (kind == 3) {
    v1::GenerateRequest request;
    if (Parse(data, size, &request)) CheckError(CheckGenerate(request));
  } else if (kind == 4) {
    v1::ExportEngineRequest request;
    if (Parse(data, size, &request)) CheckError(CheckExport(request, Limits()).status());
  } else if (kind == 5) {
    v1::SyncEngineRequest request;
    if (Parse(data, size, &request)) CheckError(CheckSync(request));
  } else {
    v1::SetEngineRequest request;
    for (const v1::Role role : {v1::ROLE_TRAIN, v1::ROLE_INFER}) {
      if (Parse(data, size, &request)) CheckError(CheckSet(request, role));
    }
  }
  return 0;
}
