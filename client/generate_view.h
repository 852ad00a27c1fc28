// What an inference engine generated, for people.
#ifndef CLIENT_GENERATE_VIEW_H_
#define CLIENT_GENERATE_VIEW_H_

#include <string>

#include "regroup/v1/control.pb.h"

namespace regroup {

// A headline and the tokens of each output.
std::string GenerateView(const v1::GenerateResponse& response, bool color);

}  // namespace regroup

#endif  // CLIENT_GENERATE_VIEW_H_
