#include "engine/zero/gradient_reducer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/layout/shard.h"

namespace regroup {

GradientReducer::GradientReducer(const ParamTable* table, const PartitionGroups& groups,
                                 BufferPool* pool)
    : table_(table), pool_(pool) {
  for (const Unit& unit : table->units()) {
    UnitGradient gradient;
    gradient.group = groups.at(unit.group);
    const int64_t shard = ShardSize(unit.numel, gradient.group->size());
    gradient.bytes = shard * gradient.group->size() * static_cast<int64_t>(sizeof(float));
    gradient.added.resize(unit.parameters.size());
    gradient.shard = at::empty({shard}, at::kFloat);  // each pass reduces every unit
    units_.push_back(std::move(gradient));
  }
}

GradientReducer::~GradientReducer() {
  DrainTo(0).IgnoreError();  // the group keeps the failure
}

void GradientReducer::BeginPass(bool accumulate) {
  accumulate_ = accumulate;
  for (UnitGradient& gradient : units_) {
    gradient.reduced = false;
    gradient.added.assign(gradient.added.size(), false);
  }
}

float* GradientReducer::Buffer(UnitGradient* gradient) {
  if (gradient->buffer == nullptr) {
    gradient->buffer = static_cast<float*>(pool_->Take(gradient->bytes));
  }
  return gradient->buffer;
}

void GradientReducer::Add(int unit, int position, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  UnitGradient& collected = units_[unit];
  const Parameter& parameter = table_->parameter(table_->unit(unit).parameters[position]);
  at::Tensor place =
      at::from_blob(Buffer(&collected) + parameter.offset, parameter.shape, at::kFloat);
  if (collected.added[position]) {
    place.add_(gradient);
  } else {
    place.copy_(gradient);
  }
  collected.added[position] = true;
}

absl::Status GradientReducer::Reduce(int unit) {
  UnitGradient& gradient = units_[unit];
  const Unit& described = table_->unit(unit);
  float* buffer = Buffer(&gradient);
  for (size_t i = 0; i < described.parameters.size(); ++i) {
    const Parameter& parameter = table_->parameter(described.parameters[i]);
    if (!gradient.added[i]) {
      std::memset(buffer + parameter.offset, 0, parameter.numel * sizeof(float));
    }
  }
  std::memset(buffer + described.numel, 0, gradient.bytes - described.numel * sizeof(float));
  const at::Tensor full =
      at::from_blob(buffer, {gradient.bytes / static_cast<int64_t>(sizeof(float))}, at::kFloat);
  float* part = nullptr;
  at::Tensor into = gradient.shard;
  if (accumulate_) {
    part = static_cast<float*>(pool_->Take(static_cast<int64_t>(gradient.shard.nbytes())));
    into = at::from_blob(part, gradient.shard.sizes(), at::kFloat);
  }
  in_flight_.push_back(
      {unit, buffer, part,
       gradient.group->ReduceScatter(full, into, absl::StrCat("reduce ", described.name))});
  gradient.buffer = nullptr;
  gradient.reduced = true;
  return DrainTo(1);
}

absl::Status GradientReducer::DrainTo(size_t left) {
  const at::NoGradGuard no_grad;
  absl::Status first;
  while (in_flight_.size() > left) {
    Reduction reduction = std::move(in_flight_.front());
    in_flight_.pop_front();
    first.Update(reduction.pending->Wait());
    at::Tensor& shard = units_[reduction.unit].shard;
    if (reduction.part != nullptr) {
      if (first.ok()) shard.add_(at::from_blob(reduction.part, shard.sizes(), at::kFloat));
      pool_->GiveBack(reduction.part, static_cast<int64_t>(shard.nbytes()));
    }
    pool_->GiveBack(reduction.buffer, units_[reduction.unit].bytes);
  }
  return first;
}

int64_t GradientReducer::ShardBytes() const {
  int64_t bytes = 0;
  for (const UnitGradient& gradient : units_)
    bytes += static_cast<int64_t>(gradient.shard.nbytes());
  return bytes;
}

}  // namespace regroup
