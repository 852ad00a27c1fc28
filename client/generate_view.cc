#include "client/generate_view.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/human.h"
#include "client/table.h"

namespace regroup {

std::string GenerateView(const v1::GenerateResponse& response, bool color) {
  std::string view;
  int index = 0;
  for (const v1::Output& output : response.outputs()) {
    absl::string_view reason = v1::FinishReason_Name(output.finish_reason());
    absl::ConsumePrefix(&reason, "FINISH_REASON_");
    std::string head =
        absl::StrCat("output ", index++, ": ", Plural(output.tokens_size(), "token"), ", ", reason);
    if (!output.logprobs().empty()) {
      const double sum = std::accumulate(output.logprobs().begin(), output.logprobs().end(), 0.0);
      absl::StrAppend(&head, absl::StrFormat(", mean logprob %.4f", sum / output.logprobs_size()));
    }
    absl::StrAppend(&head, ", weights version ", output.weights_version());
    absl::StrAppend(&view, Paint(head, Color::kBold, color), "\n  ",
                    absl::StrJoin(output.tokens(), " "), "\n");
  }
  return view;
}

}  // namespace regroup
