// Flags that several commands share.
#ifndef CLIENT_LAYOUT_FLAGS_H_
#define CLIENT_LAYOUT_FLAGS_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "client/flags.h"
#include "google/protobuf/duration.pb.h"
#include "regroup/v1/layout.pb.h"

namespace CLI {
class App;
}  // namespace CLI

namespace regroup {

// The largest size of a mesh axis that parses.
inline constexpr int64_t kMaxAxis = 100000;

// As given; "" = not given.
struct LayoutTexts {
  std::string ranks, dp, tp, ep;
};

// --ranks (required), --dp, --tp, --ep. `texts` must outlive `command`.
void AddLayoutFlags(CLI::App* command, LayoutTexts* texts);
void ReadLayout(const LayoutTexts& texts, FlagReader* flags, v1::Layout* layout);

// --checks
v1::CheckLevel ReadChecks(const std::string& text, FlagReader* flags);

void SetDuration(absl::Duration duration, google::protobuf::Duration* proto);

}  // namespace regroup

#endif  // CLIENT_LAYOUT_FLAGS_H_
