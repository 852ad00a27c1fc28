#include "engine/zero/sharded_runner.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/group/agreement.h"
#include "engine/group/comm_status.h"
#include "engine/zero/recompute.h"

namespace regroup {

using torch::autograd::variable_list;

struct ShardedRunner::Boundary : torch::autograd::Function<Boundary> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            int64_t runner, int64_t unit) {
    context->saved_data["runner"] = runner;
    context->saved_data["unit"] = unit;
    return x;
  }
  static variable_list backward(torch::autograd::AutogradContext* context,
                                variable_list gradients) {
    // The graph of a pass never outlives the runner.
    auto* runner = reinterpret_cast<ShardedRunner*>(context->saved_data["runner"].toInt());
    runner->FinishUse(static_cast<int>(context->saved_data["unit"].toInt()));
    return {gradients[0], at::Tensor(), at::Tensor()};
  }
};

ShardedRunner::ShardedRunner(const ParamTable* table, const EngineState* state,
                             PartitionGroups groups, CheckLevel checks, bool recompute)
    : table_(table),
      checks_(checks),
      recompute_(recompute),
      gatherer_(table, state, groups, &pool_),
      reducer_(table, groups, &pool_),
      open_uses_(table->units().size(), 0) {
  gradient_bytes_ = reducer_.ShardBytes();
  absl::MutexLock lock(&traces_mutex_);
  trace_ = &traces_.emplace_back("train");
}

// Each use of a unit has leaves of its own over the unit's memory, and each gradient is taken away
// as soon as autograd made it. So the gradients of several uses (tied weights) are added by the
// reducer, in fp32 whatever the weights are, and no parameter ever owns a .grad.
ShardedRunner::Leaves ShardedRunner::MakeLeaves(int unit) {
  Leaves leaves;
  for (const at::Tensor& parameter : gatherer_.parameters(unit)) {
    at::Tensor leaf = parameter.variable_data();
    leaf.requires_grad_(true);
    auto accumulator = torch::autograd::impl::grad_accumulator(leaf);
    const auto position = static_cast<int>(leaves.parameters.size());
    accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [this, leaf, unit, position](const variable_list& outputs, const variable_list& inputs) {
          at::Tensor& gradient = leaf.mutable_grad();
          if (gradient.defined()) {
            reducer_.Add(unit, position, gradient);
            gradient.reset();
          }
          return outputs;
        }));
    leaves.parameters.push_back(std::move(leaf));
    leaves.accumulators.push_back(std::move(accumulator));
  }
  return leaves;
}

TraceRecorder* ShardedRunner::TraceOf(absl::string_view kind) {
  absl::MutexLock lock(&traces_mutex_);
  for (TraceRecorder& trace : traces_) {
    if (trace.kind() == kind) return &trace;
  }
  return &traces_.emplace_back(std::string(kind));
}

std::vector<TraceSnapshot> ShardedRunner::traces() const {
  absl::MutexLock lock(&traces_mutex_);
  std::vector<TraceSnapshot> snapshots;
  for (const TraceRecorder& trace : traces_) snapshots.push_back(trace.Snapshot());
  return snapshots;
}

void ShardedRunner::BeginPass(absl::string_view kind, bool accumulate) {
  trace_ = TraceOf(kind);
  trace_->BeginPass();
  reducer_.BeginPass(accumulate);
  open_uses_.assign(open_uses_.size(), 0);
}

bool ShardedRunner::checked() const {
  return checks_ == CheckLevel::kFull || (checks_ == CheckLevel::kBasic && trace_->recording());
}

void ShardedRunner::Fetch(int unit, bool backward) {
  trace_->Record({TraceOp::kGather, backward, unit, gatherer_.UnitBytes(unit)});
  if (checked()) {
    ThrowIfError(Agree(gatherer_.group(unit), "gather",
                       {absl::StrCat("unit ", unit, ", ", gatherer_.UnitBytes(unit), " bytes")}));
  }
  if (gatherer_.Start(unit)) trace_->CountGather(/*ahead=*/false);
  ThrowIfError(gatherer_.Acquire(unit));
  const std::optional<int> next = trace_->NextGather();
  if (next.has_value() && gatherer_.Start(*next)) trace_->CountGather(/*ahead=*/true);
}

// A unit that the trace fetches next again (the last of forward is the first of backward) stays.
void ShardedRunner::ReleaseUnlessNext(int unit) {
  if (trace_->NextGather() != unit) gatherer_.Release(unit);
}

at::Tensor ShardedRunner::Run(int unit, const at::Tensor& x, const Body& body, Use use) {
  Fetch(unit, /*backward=*/false);
  if (!at::GradMode::is_enabled()) {
    at::Tensor output = body(x, gatherer_.parameters(unit));
    ReleaseUnlessNext(unit);
    return output;
  }
  // A lookup keeps no activation.
  if (recompute_ && use.backward_reads_weights && !use.keep_graph) {
    return RunRecomputed(unit, x, body);
  }
  at::Tensor input = x;
  if (x.requires_grad()) {
    input = Boundary::apply(x, reinterpret_cast<int64_t>(this), static_cast<int64_t>(unit));
  }
  const Leaves leaves = MakeLeaves(unit);
  at::Tensor output = body(input, leaves.parameters);
  if (output.requires_grad()) {
    ++open_uses_[unit];
    if (use.backward_reads_weights) {
      output.register_hook([this, unit](const at::Tensor&) { Fetch(unit, /*backward=*/true); });
    }
  }
  ReleaseUnlessNext(unit);
  return output;
}

// Gathers and reductions come in the order that they have without it.
at::Tensor ShardedRunner::RunRecomputed(int unit, const at::Tensor& x, const Body& body) {
  at::Tensor output;
  {
    const at::NoGradGuard no_grad;
    output = body(x, gatherer_.parameters(unit));
  }
  ++open_uses_[unit];
  output = WithRecompute(x, output,
                         [this, unit, body](const at::Tensor& input, const at::Tensor& gradient) {
                           Fetch(unit, /*backward=*/true);
                           const Leaves leaves = MakeLeaves(unit);
                           torch::autograd::backward({body(input, leaves.parameters)}, {gradient});
                           FinishUse(unit);
                         });
  ReleaseUnlessNext(unit);
  return output;
}

// A unit used several times (tied weights) is reduced after its last use.
void ShardedRunner::FinishUse(int unit) {
  ReleaseUnlessNext(unit);
  if (--open_uses_[unit] == 0) ReduceUnit(unit);
}

void ShardedRunner::ReduceUnit(int unit) {
  trace_->Record({TraceOp::kReduce, true, unit, reducer_.UnitBytes(unit)});
  if (checked()) {
    ThrowIfError(Agree(gatherer_.group(unit), "reduce",
                       {absl::StrCat("unit ", unit, ", ", reducer_.UnitBytes(unit), " bytes")}));
  }
  trace_->CountReduction();
  ThrowIfError(reducer_.Reduce(unit));
}

void ShardedRunner::Backward(const at::Tensor& loss) {
  torch::autograd::backward({loss}, {});
  // Units whose input needs no gradient have no boundary, and unused ones no backward at all.
  for (const Unit& unit : table_->units()) {
    if (!reducer_.reduced(unit.id)) ReduceUnit(unit.id);
    gatherer_.Release(unit.id);
  }
  ThrowIfError(reducer_.Drain());
}

}  // namespace regroup
