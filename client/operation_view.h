// Operations as people follow them.
#ifndef CLIENT_OPERATION_VIEW_H_
#define CLIENT_OPERATION_VIEW_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session.h"
#include "regroup/v1/control.pb.h"

namespace regroup {

// "create actor", or "create" without an engine.
std::string OperationTitle(const v1::Operation& operation);

// "create actor: load  ███░░░  48 %  260.1 MB of 538.1 MB  85.2 MB/s  3.3 s left", as far as it is
// known.
std::string OperationProgress(const v1::Operation& operation);

// The operations as a table, "" if there are none.
std::string OperationTable(const google::protobuf::RepeatedPtrField<v1::Operation>& operations,
                           bool color);

// Follows an operation to its end with a progress line, and returns it; Ctrl-C stops the waiting
// only.
absl::StatusOr<v1::Operation> Follow(
    Session* session, const v1::Operation& operation,
    const std::function<void(const v1::Operation&)>& on_progress = nullptr);

// What every mutation does with its answer: waits (unless `no_wait`), prints the operation, and
// returns how it ended. `sentence` says for people what was done.
absl::Status FinishMutation(Session* session, const absl::StatusOr<v1::Operation>& accepted,
                            bool no_wait,
                            const std::function<std::string(const v1::Operation&)>& sentence);

// `done`, the operation's detail or else what it moved, and how long it took:
// "engine actor moved to ranks 0-2 (538.1 MB moved) in 0.93 s".
std::string Sentence(const std::string& done, const v1::Operation& operation);

}  // namespace regroup

#endif  // CLIENT_OPERATION_VIEW_H_
