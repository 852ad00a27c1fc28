#include "client/layout_flags.h"

#include "CLI/CLI.hpp"

namespace regroup {

void AddLayoutFlags(CLI::App* command, LayoutTexts* texts) {
  command->add_option("--ranks", texts->ranks, "0, 0-3, 0,2 or 2,0-1: in this order")->required();
  command->add_option("--dp", texts->dp, "data-parallel size (the number of ranks)");
  command->add_option("--tp", texts->tp, "tensor-parallel size (1)");
  command->add_option("--ep", texts->ep, "expert-parallel size (1)");
}

void ReadLayout(const LayoutTexts& texts, FlagReader* flags, v1::Layout* layout) {
  for (const int rank : flags->Ranks("--ranks", texts.ranks)) layout->add_ranks(rank);
  const auto axis = [flags](const char* flag, const std::string& text) {
    return text.empty() ? 0 : static_cast<int32_t>(flags->Int(flag, text, 1, kMaxAxis));
  };
  layout->set_dp(axis("--dp", texts.dp));
  layout->set_tp(axis("--tp", texts.tp));
  layout->set_ep(axis("--ep", texts.ep));
}

v1::CheckLevel ReadChecks(const std::string& text, FlagReader* flags) {
  return flags->Choice<v1::CheckLevel>("--checks", text,
                                       {{"off", v1::CHECK_LEVEL_OFF},
                                        {"basic", v1::CHECK_LEVEL_BASIC},
                                        {"full", v1::CHECK_LEVEL_FULL}});
}

void SetDuration(absl::Duration duration, google::protobuf::Duration* proto) {
  absl::Duration rest;
  proto->set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &rest));
  proto->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
}

}  // namespace regroup
