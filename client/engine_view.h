// One engine in detail.
#ifndef CLIENT_ENGINE_VIEW_H_
#define CLIENT_ENGINE_VIEW_H_

#include <string>

#include "regroup/v1/control.pb.h"

namespace regroup {

// Its spec, state, groups and memory.
std::string DescribeView(const v1::Engine& engine, bool color);

// Its groups, and per kind of pass the counts and the table of positions.
std::string TraceView(const v1::EngineTrace& trace, bool color);

}  // namespace regroup

#endif  // CLIENT_ENGINE_VIEW_H_
