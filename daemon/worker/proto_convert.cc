#include "daemon/worker/proto_convert.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/group/comm_status.h"
#include "proto/rpc_status.h"

namespace regroup {
namespace {

absl::StatusOr<Role> RoleFromProto(v1::Role role) {
  switch (role) {
    case v1::ROLE_TRAIN:
      return Role::kTrain;
    case v1::ROLE_INFER:
      return Role::kInfer;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("role ", static_cast<int>(role), "; allowed: train, infer"));
  }
}

absl::StatusOr<std::optional<DType>> DTypeFromProto(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_UNSPECIFIED:
      return std::nullopt;
    case v1::DTYPE_FP32:
      return DType::kFp32;
    case v1::DTYPE_BF16:
      return DType::kBf16;
    case v1::DTYPE_FP16:
      return DType::kFp16;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("dtype ", static_cast<int>(dtype), "; allowed: fp32, bf16, fp16"));
  }
}

absl::StatusOr<CheckLevel> ChecksFromProto(v1::CheckLevel checks) {
  switch (checks) {
    case v1::CHECK_LEVEL_UNSPECIFIED:
    case v1::CHECK_LEVEL_BASIC:
      return CheckLevel::kBasic;
    case v1::CHECK_LEVEL_OFF:
      return CheckLevel::kOff;
    case v1::CHECK_LEVEL_FULL:
      return CheckLevel::kFull;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("checks ", static_cast<int>(checks), "; allowed: off, basic, full"));
  }
}

absl::StatusOr<OptimizerSpec> OptimizerFromProto(const v1::OptimizerSpec& proto) {
  OptimizerSpec spec;
  if (proto.name() == "sgd") {
    spec.kind = OptimizerKind::kSgd;
  } else if (proto.name() == "adam") {
    spec.kind = OptimizerKind::kAdam;
  } else if (proto.name() == "adamw") {
    spec.kind = OptimizerKind::kAdamW;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer \"", proto.name(), "\"; allowed: sgd, adam, adamw"));
  }
  const struct {
    const char* name;
    double value;
  } numbers[] = {{"learning rate", proto.learning_rate()},
                 {"momentum", proto.momentum()},
                 {"beta1", proto.beta1()},
                 {"beta2", proto.beta2()},
                 {"eps", proto.eps()},
                 {"weight decay", proto.weight_decay()}};
  for (const auto& number : numbers) {
    if (!std::isfinite(number.value) || number.value < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          number.name, " ", number.value, "; allowed: a finite number that is not negative"));
    }
  }
  spec.learning_rate = proto.learning_rate();
  spec.momentum = proto.momentum();
  spec.beta1 = proto.beta1();
  spec.beta2 = proto.beta2();
  spec.eps = proto.eps();
  spec.weight_decay = proto.weight_decay();
  return spec;
}

absl::Status CheckAvailable(const v1::EngineSpec& proto) {
  if (proto.shard_over_size() > 0) return NotAvailable("shard_over");
  if (!proto.device().empty() && proto.device() != "cpu") {
    return NotAvailable(absl::StrCat("device ", proto.device()));
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> TimeoutFromProto(const google::protobuf::Duration& proto) {
  const absl::Duration timeout = absl::Seconds(proto.seconds()) + absl::Nanoseconds(proto.nanos());
  if (timeout > absl::ZeroDuration()) return timeout;
  return absl::InvalidArgumentError(
      absl::StrCat("timeout ", absl::FormatDuration(timeout), "; allowed: more than 0s"));
}

v1::ErrorReason ReasonFor(const absl::Status& status) {
  const struct {
    const char* name;
    v1::ErrorReason reason;
  } names[] = {{"RANKS_DISAGREE", v1::ERROR_REASON_RANKS_DISAGREE},
               {"RANK_LOST", v1::ERROR_REASON_RANK_LOST},
               {"TIMEOUT", v1::ERROR_REASON_TIMEOUT},
               {"CANCELLED", v1::ERROR_REASON_CANCELLED},
               {"MEMORY", v1::ERROR_REASON_MEMORY},
               {"DATA", v1::ERROR_REASON_DATA}};
  const std::string reason = ReasonOf(status);
  for (const auto& known : names) {
    if (reason == known.name) return known.reason;
  }
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return v1::ERROR_REASON_INVALID_FIELD;
    case absl::StatusCode::kUnimplemented:
      return v1::ERROR_REASON_NOT_AVAILABLE;
    case absl::StatusCode::kDeadlineExceeded:
      return v1::ERROR_REASON_TIMEOUT;
    case absl::StatusCode::kUnavailable:
      return v1::ERROR_REASON_RANK_LOST;
    case absl::StatusCode::kCancelled:
      return v1::ERROR_REASON_CANCELLED;
    case absl::StatusCode::kDataLoss:
      return v1::ERROR_REASON_DATA;
    default:
      return v1::ERROR_REASON_UNSPECIFIED;
  }
}

}  // namespace

absl::StatusOr<Layout> LayoutFromProto(const v1::Layout& proto, Placement placement) {
  Layout layout;
  layout.ranks.assign(proto.ranks().begin(), proto.ranks().end());
  layout.dp = proto.dp();
  layout.tp = proto.tp();
  layout.ep = proto.ep();
  layout.placement = placement;
  if (absl::Status status = CompleteLayout(&layout); !status.ok()) return status;
  return layout;
}

absl::StatusOr<EngineSpec> SpecFromProto(const v1::EngineSpec& proto, uint64_t uid) {
  if (absl::Status status = CheckAvailable(proto); !status.ok()) return status;
  EngineSpec spec;
  spec.name = proto.name();
  spec.uid = uid;
  spec.model = proto.model();
  const absl::StatusOr<Role> role = RoleFromProto(proto.role());
  if (!role.ok()) return role.status();
  spec.role = *role;
  const absl::StatusOr<std::optional<DType>> dtype = DTypeFromProto(proto.dtype());
  if (!dtype.ok()) return dtype.status();
  spec.dtype = *dtype;
  absl::StatusOr<Layout> layout = LayoutFromProto(
      proto.layout(), spec.role == Role::kTrain ? Placement::kShard : Placement::kReplicate);
  if (!layout.ok()) return layout.status();
  spec.layout = *std::move(layout);
  if (spec.role == Role::kTrain) {
    const absl::StatusOr<OptimizerSpec> optimizer = OptimizerFromProto(proto.optimizer());
    if (!optimizer.ok()) return optimizer.status();
    spec.optimizer = *optimizer;
  }
  if (!std::isfinite(proto.clip_norm()) || proto.clip_norm() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("clip norm ", proto.clip_norm(), "; allowed: 0 (off) or more"));
  }
  spec.clip_norm = proto.clip_norm();
  spec.recompute = proto.recompute();
  spec.seed = proto.seed();
  const absl::StatusOr<CheckLevel> checks = ChecksFromProto(proto.checks());
  if (!checks.ok()) return checks.status();
  spec.checks = *checks;
  if (proto.has_timeout()) {
    const absl::StatusOr<absl::Duration> timeout = TimeoutFromProto(proto.timeout());
    if (!timeout.ok()) return timeout.status();
    spec.timeout = *timeout;
  }
  return spec;
}

absl::StatusOr<EngineSettings> SettingsFromProto(const v1::SetSettings& proto) {
  EngineSettings settings;
  settings.learning_rate = proto.learning_rate();
  const absl::StatusOr<CheckLevel> checks = ChecksFromProto(proto.checks());
  if (!checks.ok()) return checks.status();
  settings.checks = *checks;
  const absl::StatusOr<absl::Duration> timeout = TimeoutFromProto(proto.timeout());
  if (!timeout.ok()) return timeout.status();
  settings.timeout = *timeout;
  return settings;
}

v1::DType DTypeToProto(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return v1::DTYPE_FP32;
    case DType::kBf16:
      return v1::DTYPE_BF16;
    case DType::kFp16:
      return v1::DTYPE_FP16;
  }
  return v1::DTYPE_UNSPECIFIED;
}

v1::FinishReason FinishToProto(Finish finish) {
  switch (finish) {
    case Finish::kNone:
      return v1::FINISH_REASON_UNSPECIFIED;
    case Finish::kStop:
      return v1::FINISH_REASON_STOP;
    case Finish::kLength:
      return v1::FINISH_REASON_LENGTH;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

v1::TrainRecord RecordToProto(const StepResult& result, double seconds) {
  v1::TrainRecord record;
  record.set_step(result.step);
  record.set_loss(result.loss);
  record.set_grad_norm(result.grad_norm);
  record.set_tokens(result.tokens);
  record.set_seconds(seconds);
  record.set_skipped(result.skipped);
  record.set_reason(result.reason);
  record.set_data_position(result.data_position);
  record.set_learning_rate(result.learning_rate);
  record.set_check_seconds(result.check_seconds);
  return record;
}

v1::PartitionGroup GroupToProto(const ParamTable& table, const Layout& layout) {
  v1::PartitionGroup group;
  group.set_name(kDataParallelGroup);
  for (int rank : layout.ranks) group.add_ranks(rank);
  group.set_parameters(layout.placement == Placement::kShard ? table.total_numel() : 0);
  return group;
}

v1::PassTrace PassToProto(const ParamTable& table, const TraceSnapshot& trace) {
  v1::PassTrace pass;
  pass.set_kind(trace.kind);
  pass.set_state(trace.state == TraceState::kAgreed ? "AGREED" : "RECORDING");
  pass.set_records(trace.records);
  pass.set_gathers(trace.gathers);
  pass.set_prefetches(trace.prefetches);
  pass.set_reductions(trace.reductions);
  for (const TraceEntry& entry : trace.entries) {
    const Unit& unit = table.unit(entry.unit);
    v1::TraceEntry* out = pass.add_entries();
    out->set_position(pass.entries_size() - 1);
    out->set_phase(entry.backward ? "backward" : "forward");
    out->set_operation(entry.op == TraceOp::kGather ? "gather" : "reduce");
    out->set_unit(unit.name);
    out->set_unit_id(unit.id);
    out->set_group(unit.group);
    for (int id : unit.parameters) out->add_parameter_ids(id);
    out->set_bytes(entry.bytes);
  }
  return pass;
}

absl::Status WithErrorDetail(const absl::Status& status, absl::string_view engine,
                             absl::string_view phase, bool engine_broken) {
  if (status.ok()) return status;
  std::optional<v1::ErrorDetail> known = DetailOf(status);
  if (known.has_value()) {
    if (!engine_broken || known->engine_broken()) return status;
    known->set_engine_broken(true);
    return MakeError(status.code(), status.message(), *known);
  }
  v1::ErrorDetail detail;
  detail.set_engine_broken(engine_broken);
  detail.set_reason(ReasonFor(status));
  detail.set_engine(std::string(engine));
  detail.set_phase(std::string(phase));
  return MakeError(status.code(), status.message(), detail);
}

}  // namespace regroup
