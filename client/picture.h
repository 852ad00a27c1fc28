// The cluster at a glance: which rank holds which engine.
#ifndef CLIENT_PICTURE_H_
#define CLIENT_PICTURE_H_

#include <string>

#include "client/table.h"
#include "regroup/v1/control.pb.h"

namespace regroup {

// "1 node · 4 ranks, 3 ready · 2 engines · 1 operation running".
std::string StatusHeadline(const v1::GetStatusResponse& status);

// One row a rank, one column an engine, filled where the engine lies; then what the marks mean, and
// how ranks and engines that failed did so.
std::string DrawPicture(const v1::GetStatusResponse& status, bool color);

// name, role, state, ranks, generation, step, weights version, activity. "" without engines.
std::string EngineTable(const v1::GetStatusResponse& status, bool color);

// The state's name without its prefix, in its colour.
Cell StateCell(v1::RankState state);
Cell StateCell(v1::NodeState state);
Cell StateCell(v1::EngineState state);

// TRAIN, INFER.
std::string RoleName(v1::Role role);

// "0-2,5".
std::string RankList(const google::protobuf::RepeatedField<int>& ranks);

// "rank 3", "ranks 0-2".
std::string NamedRanks(const google::protobuf::RepeatedField<int>& ranks);

}  // namespace regroup

#endif  // CLIENT_PICTURE_H_
