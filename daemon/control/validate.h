// Checks every field of every request, before any rank acts, and fills in what was left out.
// Messages name the flag that a user of regroupctl gives the field with.
#ifndef DAEMON_CONTROL_VALIDATE_H_
#define DAEMON_CONTROL_VALIDATE_H_

#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/control/data_roots.h"
#include "regroup/v1/control.pb.h"

namespace regroup {

// What requests are checked against.
struct RequestLimits {
  int ranks = 0;          // of the cluster: one more than the highest
  std::set<int> missing;  // numbers below that no rank has
  DataRoots roots;
};

// All return INVALID_ARGUMENT for a bad field, NOT_FOUND for a rank or path that does not exist,
// and UNIMPLEMENTED ("not available in this version: FLAG"). Thread safe.

// [A-Za-z0-9][A-Za-z0-9._-]{0,62}. `what` starts the message: "engine name", "--node".
absl::Status CheckName(absl::string_view what, absl::string_view name);

// Of every mutation, which the others leave to this. 1 to 128 bytes.
absl::Status CheckRequestId(absl::string_view id);

// The request's spec, complete: layout axes, role, checks, timeout, optimizer, and the model's real
// path.
absl::StatusOr<v1::EngineSpec> CheckCreate(const v1::CreateEngineRequest& request,
                                           const RequestLimits& limits);

// The request with its layout complete and staging_bytes > 0.
absl::StatusOr<v1::RelayoutEngineRequest> CheckRelayout(const v1::RelayoutEngineRequest& request,
                                                        const RequestLimits& limits);

// Whether the model of an engine that there is may be opened on this node too, where it moves to.
absl::Status CheckModelPath(const std::string& model, const RequestLimits& limits);

absl::Status CheckSync(const v1::SyncEngineRequest& request);

// The request with the directory's real path.
absl::StatusOr<v1::ExportEngineRequest> CheckExport(const v1::ExportEngineRequest& request,
                                                    const RequestLimits& limits);

// The request with the data file's real path, and accumulate 1 if it was 0.
absl::StatusOr<v1::TrainRequest> CheckTrain(const v1::TrainRequest& request,
                                            const RequestLimits& limits);

// `role` is the engine's.
absl::Status CheckSet(const v1::SetEngineRequest& request, v1::Role role);

// "basic"
std::string CheckLevelName(v1::CheckLevel checks);

absl::Status CheckGenerate(const v1::GenerateRequest& request);

// A complete spec's timeout.
absl::Duration TimeoutOf(const v1::EngineSpec& spec);

}  // namespace regroup

#endif  // DAEMON_CONTROL_VALIDATE_H_
