#include "daemon/control/validate.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "daemon/control/field_error.h"
#include "engine/layout/layout.h"
#include "engine/layout/rank_list.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

constexpr size_t kMaxNameBytes = 63;
constexpr size_t kMaxRequestIdBytes = 128;
constexpr size_t kMaxModelBytes = 4096;
constexpr char kModelForms[] =
    "a folder with config.json and .safetensors files, random:FOLDER (config.json, seeded weights) "
    "or mlp:in=..,hidden=..,layers=..,out=..";
constexpr int64_t kMaxSteps = 1000000000;
constexpr int64_t kMaxBatch = 65536;
constexpr int64_t kMaxSeq = 1000000;
constexpr int64_t kMaxTokens = 1000000000;
constexpr int kMaxPrompts = 4096;
constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kDefaultStaging = 64 * kMiB;
constexpr int64_t kMaxStaging = 65536 * kMiB;
constexpr int64_t kDefaultTimeoutSeconds = 30;
constexpr int64_t kMaxTimeoutSeconds = 3600;

std::string Text(double value) {
  return std::isnan(value)   ? "nan"
         : std::isinf(value) ? (value > 0 ? "inf" : "-inf")
                             : absl::StrCat(value);
}

absl::Status CheckRange(absl::string_view flag, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return FieldError(flag, absl::StrCat(value), "is out of range",
                    absl::StrCat(least, " to ", most));
}

// What the ranks compute with in fp32: a value that is 0 or infinite there must not pass as
// another.
bool FitsFp32(double value) { return value >= FLT_MIN && value <= FLT_MAX; }

absl::Status CheckAboveZero(absl::string_view flag, double value) {
  if (FitsFp32(value)) return absl::OkStatus();
  return FieldError(flag, Text(value), "is out of range",
                    "a number above 0, from 1.2e-38 to 3.4e+38 as in fp32");
}

absl::Status CheckZeroOrFp32(absl::string_view flag, double value) {
  if (value == 0 || FitsFp32(value)) return absl::OkStatus();
  return FieldError(flag, Text(value), "is out of range",
                    "0, or a number from 1.2e-38 to 3.4e+38 as in fp32");
}

absl::Status CheckNotNegative(absl::string_view flag, double value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return FieldError(flag, Text(value), "is out of range", "a finite number, 0 or above");
}

absl::Status CheckBeta(absl::string_view flag, double value) {
  // Both false for NaN.
  if (value >= 0 && value < 1 && static_cast<float>(value) < 1) return absl::OkStatus();
  return FieldError(flag, value < 1 ? absl::StrFormat("%.17g", value) : Text(value),
                    "is out of range", "0 or above and below 1, in fp32 too");
}

// The first error of several checks.
absl::Status FirstOf(std::initializer_list<absl::Status> checks) {
  for (const absl::Status& status : checks) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Errors of the layout library, with their detail.
absl::Status WithDetail(const absl::Status& status) {
  return MakeError(status.code(), status.message(),
                   absl::IsUnimplemented(status) ? v1::ERROR_REASON_NOT_AVAILABLE
                                                 : v1::ERROR_REASON_INVALID_FIELD);
}

std::string ExistingRanks(const RequestLimits& limits) {
  if (limits.ranks == 0) return "there is none";
  if (limits.missing.empty()) return absl::StrCat("allowed: 0 to ", limits.ranks - 1);
  std::vector<int> ranks;
  for (int rank = 0; rank < limits.ranks; ++rank) {
    if (limits.missing.count(rank) == 0) ranks.push_back(rank);
  }
  return absl::StrCat("allowed: ", FormatRankList(ranks));
}

absl::StatusOr<v1::Layout> CheckLayout(const v1::Layout& given, const RequestLimits& limits) {
  for (int rank : given.ranks()) {
    if (rank >= limits.ranks || limits.missing.count(rank) > 0) {
      return MakeError(
          absl::StatusCode::kNotFound,
          absl::StrCat("--ranks: rank ", rank, " does not exist; ", ExistingRanks(limits)),
          v1::ERROR_REASON_INVALID_FIELD);
    }
  }
  regroup::Layout layout;
  layout.ranks.assign(given.ranks().begin(), given.ranks().end());
  layout.dp = given.dp();
  layout.tp = given.tp();
  layout.ep = given.ep();
  if (absl::Status status = regroup::CompleteLayout(&layout); !status.ok())
    return WithDetail(status);
  v1::Layout result = given;
  result.set_dp(layout.dp);
  result.set_tp(layout.tp);
  result.set_ep(layout.ep);
  return result;
}

absl::StatusOr<v1::OptimizerSpec> CheckOptimizer(const v1::OptimizerSpec& given) {
  v1::OptimizerSpec optimizer = given;
  if (optimizer.name().empty()) optimizer.set_name("adamw");
  const bool adam = optimizer.name() == "adam" || optimizer.name() == "adamw";
  if (!adam && optimizer.name() != "sgd") {
    return FieldError("--optimizer", optimizer.name(), "is unknown", "sgd, adam, adamw");
  }
  if (optimizer.learning_rate() == 0) {
    return FieldError("--lr", "0", "is out of range (it is required)", "a number above 0");
  }
  const absl::Status status = FirstOf({
      CheckAboveZero("--lr", optimizer.learning_rate()),
      CheckZeroOrFp32("--momentum", optimizer.momentum()),
      CheckBeta("--beta1", optimizer.beta1()),
      CheckBeta("--beta2", optimizer.beta2()),
      adam ? CheckAboveZero("--eps", optimizer.eps()) : CheckZeroOrFp32("--eps", optimizer.eps()),
      CheckZeroOrFp32("--weight-decay", optimizer.weight_decay()),
  });
  if (!status.ok()) return status;
  if (adam && optimizer.momentum() != 0) {
    return FieldError("--momentum", Text(optimizer.momentum()),
                      absl::StrCat("is not a parameter of ", optimizer.name()),
                      "--momentum only with --optimizer=sgd");
  }
  return optimizer;
}

absl::StatusOr<std::string> ResolveModel(const std::string& model, const DataRoots& roots) {
  if (model.empty()) {
    return FieldError("--model", "", "is missing", kModelForms);
  }
  if (model.size() > kMaxModelBytes) {
    return FieldError("--model", model, "is too long",
                      absl::StrCat("at most ", kMaxModelBytes, " bytes"));
  }
  if (absl::StartsWith(model, "mlp:")) return model;
  absl::string_view folder = model;
  const bool random = absl::ConsumePrefix(&folder, "random:");
  const absl::StatusOr<std::string> resolved = roots.ResolveModel("--model", std::string(folder));
  if (resolved.ok()) return absl::StrCat(random ? "random:" : "", *resolved);
  absl::string_view message = resolved.status().message();
  const bool starts_with_flag = absl::ConsumePrefix(&message, "--model=");
  return MakeError(
      resolved.status().code(),
      absl::StrCat(
          starts_with_flag ? "--model=" : "", starts_with_flag && random ? "random:" : "", message,
          absl::IsNotFound(resolved.status()) ? absl::StrCat("; allowed: ", kModelForms) : ""),
      v1::ERROR_REASON_INVALID_FIELD);
}

absl::Status CheckTimeout(const google::protobuf::Duration& timeout) {
  const double seconds = static_cast<double>(timeout.seconds()) + timeout.nanos() * 1e-9;
  const bool valid = timeout.nanos() > -1000000000 && timeout.nanos() < 1000000000;
  if (valid && seconds >= 1 && seconds <= kMaxTimeoutSeconds) return absl::OkStatus();
  // As it was given: a sum would hide what is wrong with its parts.
  std::string given = absl::StrCat(timeout.seconds(), "s");
  if (timeout.nanos() != 0) absl::StrAppend(&given, " ", timeout.nanos(), "ns");
  return FieldError("--timeout", given, "is out of range", "1s to 1h");
}

template <typename Enum>
absl::Status CheckEnum(absl::string_view flag, Enum value, bool (*is_valid)(int),
                       absl::string_view allowed) {
  if (is_valid(static_cast<int>(value))) return absl::OkStatus();
  return FieldError(flag, absl::StrCat(static_cast<int>(value)), "is unknown", allowed);
}

absl::Status CheckDevice(const std::string& device) {
  if (device.empty() || device == "cpu") return absl::OkStatus();
  if (device == "cuda") return NotAvailable("--device=cuda");
  return FieldError("--device", device, "is unknown", "cpu");
}

}  // namespace

absl::Status CheckName(absl::string_view what, absl::string_view name) {
  bool valid = !name.empty() && name.size() <= kMaxNameBytes && absl::ascii_isalnum(name[0]);
  for (const char c : name) {
    valid = valid && (absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-');
  }
  if (valid) return absl::OkStatus();
  return FieldError(what, name, "is not a name",
                    "[A-Za-z0-9][A-Za-z0-9._-]{0,62}: letters, digits, and . _ - but not first");
}

absl::Status CheckRequestId(absl::string_view id) {
  if (!id.empty() && id.size() <= kMaxRequestIdBytes) return absl::OkStatus();
  return FieldError("request_id", id, id.empty() ? "is missing" : "is too long",
                    absl::StrCat("1 to ", kMaxRequestIdBytes, " bytes, new for each request"));
}

absl::StatusOr<v1::EngineSpec> CheckCreate(const v1::CreateEngineRequest& request,
                                           const RequestLimits& limits) {
  v1::EngineSpec spec = request.spec();
  if (spec.role() == v1::ROLE_UNSPECIFIED) spec.set_role(v1::ROLE_TRAIN);
  if (spec.checks() == v1::CHECK_LEVEL_UNSPECIFIED) spec.set_checks(v1::CHECK_LEVEL_BASIC);
  if (!spec.has_timeout()) spec.mutable_timeout()->set_seconds(kDefaultTimeoutSeconds);
  const absl::Status status = FirstOf({
      CheckName("NAME", spec.name()),
      CheckEnum("--role", spec.role(), v1::Role_IsValid, "train, infer"),
      CheckEnum("--dtype", spec.dtype(), v1::DType_IsValid, "fp32, bf16, fp16"),
      CheckEnum("--checks", spec.checks(), v1::CheckLevel_IsValid, "off, basic, full"),
      CheckTimeout(spec.timeout()),
      CheckDevice(spec.device()),
      CheckZeroOrFp32("--clip-norm", spec.clip_norm()),
  });
  if (!status.ok()) return status;
  if (request.dry_run()) return NotAvailable("--dry-run");
  if (!spec.shard_over().empty()) return NotAvailable("--shard-over");
  spec.set_device("cpu");

  absl::StatusOr<v1::Layout> layout = CheckLayout(spec.layout(), limits);
  if (!layout.ok()) return layout.status();
  *spec.mutable_layout() = *layout;
  if (spec.role() == v1::ROLE_TRAIN) {
    absl::StatusOr<v1::OptimizerSpec> optimizer = CheckOptimizer(spec.optimizer());
    if (!optimizer.ok()) return optimizer.status();
    *spec.mutable_optimizer() = *optimizer;
  } else {
    if (spec.optimizer().learning_rate() != 0) {
      return FieldError("--lr", Text(spec.optimizer().learning_rate()), "is for trainers",
                        "--lr only with --role=train");
    }
    if (spec.clip_norm() != 0) {
      return FieldError("--clip-norm", Text(spec.clip_norm()), "is for trainers",
                        "--clip-norm only with --role=train");
    }
    if (spec.recompute()) {
      return FieldError("--recompute", "true", "is for trainers",
                        "--recompute only with --role=train");
    }
    spec.clear_optimizer();
  }
  absl::StatusOr<std::string> model = ResolveModel(spec.model(), limits.roots);
  if (!model.ok()) return model.status();
  spec.set_model(*model);
  return spec;
}

absl::StatusOr<v1::RelayoutEngineRequest> CheckRelayout(const v1::RelayoutEngineRequest& request,
                                                        const RequestLimits& limits) {
  v1::RelayoutEngineRequest result = request;
  if (request.dry_run()) return NotAvailable("--dry-run");
  if (request.in_place()) return NotAvailable("--in-place");
  if (request.expected_generation() < 0) {
    return FieldError("--if-generation", absl::StrCat(request.expected_generation()),
                      "is out of range", "0 (any) or above");
  }
  if (request.staging_bytes() == 0) {
    result.set_staging_bytes(kDefaultStaging);
  } else if (request.staging_bytes() < kMiB || request.staging_bytes() > kMaxStaging) {
    return FieldError("--staging-mb", absl::StrCat(request.staging_bytes(), " bytes"),
                      "is out of range", absl::StrCat("1 to ", kMaxStaging / kMiB, " MiB"));
  }
  absl::StatusOr<v1::Layout> layout = CheckLayout(request.layout(), limits);
  if (!layout.ok()) return layout.status();
  *result.mutable_layout() = *layout;
  return result;
}

absl::Status CheckModelPath(const std::string& model, const RequestLimits& limits) {
  return ResolveModel(model, limits.roots).status();
}

absl::Status CheckSync(const v1::SyncEngineRequest& request) {
  if (request.source() == request.destination()) {
    return FieldError("DST", request.destination(), "is the source itself",
                      "an inference engine other than SRC");
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::ExportEngineRequest> CheckExport(const v1::ExportEngineRequest& request,
                                                    const RequestLimits& limits) {
  absl::StatusOr<std::string> directory = limits.roots.ResolveNewFolder("DIR", request.directory());
  if (!directory.ok()) return directory.status();
  v1::ExportEngineRequest result = request;
  result.set_directory(*directory);
  return result;
}

absl::StatusOr<v1::TrainRequest> CheckTrain(const v1::TrainRequest& request,
                                            const RequestLimits& limits) {
  v1::TrainRequest result = request;
  const absl::Status status = FirstOf({
      CheckRange("--steps", request.steps(), 1, kMaxSteps),
      CheckRange("--batch", request.batch(), 1, kMaxBatch),
      CheckRange("--seq", request.seq(), 0, kMaxSeq),
      CheckRange("--accumulate", request.accumulate(), 0, kMaxBatch),
  });
  if (!status.ok()) return status;
  if (request.accumulate() > request.batch()) {
    return FieldError("--accumulate", absl::StrCat(request.accumulate()),
                      absl::StrCat("is more than the rows of --batch=", request.batch()),
                      absl::StrCat("1 to ", request.batch()));
  }
  result.set_accumulate(std::max<int64_t>(request.accumulate(), 1));
  absl::StatusOr<std::string> data = limits.roots.ResolveFile("--data", request.data());
  if (!data.ok()) return data.status();
  result.set_data(*data);
  return result;
}

absl::Status CheckSet(const v1::SetEngineRequest& request, v1::Role role) {
  const bool checks = request.checks() != v1::CHECK_LEVEL_UNSPECIFIED;
  if (!checks && !request.has_timeout() && !request.has_learning_rate()) {
    return MakeError(absl::StatusCode::kInvalidArgument,
                     "nothing to set; allowed: at least one of --checks, --timeout, --lr",
                     v1::ERROR_REASON_INVALID_FIELD);
  }
  absl::Status status = FirstOf({
      CheckEnum("--checks", request.checks(), v1::CheckLevel_IsValid, "off, basic, full"),
      request.has_timeout() ? CheckTimeout(request.timeout()) : absl::OkStatus(),
      request.has_learning_rate() ? CheckAboveZero("--lr", request.learning_rate())
                                  : absl::OkStatus(),
  });
  if (!status.ok()) return status;
  if (request.has_learning_rate() && role != v1::ROLE_TRAIN) {
    return FieldError("--lr", Text(request.learning_rate()), "is for trainers",
                      "--lr only of an engine of role train");
  }
  return absl::OkStatus();
}

std::string CheckLevelName(v1::CheckLevel checks) {
  const std::string name = v1::CheckLevel_Name(checks);
  return absl::AsciiStrToLower(absl::StripPrefix(name, "CHECK_LEVEL_"));
}

absl::Status CheckGenerate(const v1::GenerateRequest& request) {
  absl::Status status = FirstOf({
      CheckRange("--max-tokens", request.max_tokens(), 1, kMaxTokens),
      CheckNotNegative("--temperature", request.temperature()),
      CheckRange("--top-k", request.top_k(), 0, INT64_MAX),
  });
  if (!status.ok()) return status;
  if (!(request.top_p() >= 0 && request.top_p() <= 1)) {
    return FieldError("--top-p", Text(request.top_p()), "is out of range", "0 to 1");
  }
  if (request.prompts().empty() || request.prompts_size() > kMaxPrompts) {
    return FieldError("--tokens-file", absl::StrCat(request.prompts_size(), " prompts"),
                      "is out of range", absl::StrCat("1 to ", kMaxPrompts, " prompts"));
  }
  for (int i = 0; i < request.prompts_size(); ++i) {
    if (request.prompts(i).tokens().empty()) {
      return FieldError("--tokens", "",
                        absl::StrCat("(or line ", i + 1, " of --tokens-file) is empty"),
                        "at least one token");
    }
    for (int token : request.prompts(i).tokens()) {
      if (token < 0) {
        return FieldError("--tokens", absl::StrCat(token),
                          absl::StrCat("(or in line ", i + 1, " of --tokens-file) is negative"),
                          "token ids, 0 or above");
      }
    }
  }
  for (int token : request.stop_tokens()) {
    if (token < 0) {
      return FieldError("--stop-token", absl::StrCat(token), "is negative",
                        "token ids, 0 or above");
    }
  }
  return absl::OkStatus();
}

absl::Duration TimeoutOf(const v1::EngineSpec& spec) {
  return absl::Seconds(spec.timeout().seconds()) + absl::Nanoseconds(spec.timeout().nanos());
}

}  // namespace regroup
