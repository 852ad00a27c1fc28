#include "engine/zero/unit_gatherer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "engine/layout/shard.h"
#include "engine/zero/dtype.h"

namespace regroup {
namespace {

c10::Storage EmptyStorage(int64_t bytes) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, at::DataPtr(nullptr, at::kCPU), nullptr, false));
}

// nbytes stays as it is: with 0 even view operations would throw.
void SetMemory(const c10::Storage& storage, void* memory) {
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(memory, at::kCPU));
}

std::vector<int64_t> ContiguousStrides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

}  // namespace

UnitGatherer::UnitGatherer(const ParamTable* table, const EngineState* state,
                           PartitionGroups groups, BufferPool* pool)
    : table_(table), state_(state), pool_(pool) {
  const auto options = at::TensorOptions(ToScalarType(table->dtype()));
  for (const Unit& unit : table->units()) {
    UnitMemory memory;
    memory.group = groups.at(unit.group);
    memory.bytes = ShardSize(unit.numel, memory.group->size()) * memory.group->size() *
                   DTypeBytes(table->dtype());
    memory.storage = EmptyStorage(memory.bytes);
    for (const int id : unit.parameters) {
      const Parameter& parameter = table->parameter(id);
      memory.parameters.push_back(at::empty({0}, options)
                                      .set_(memory.storage, parameter.offset, parameter.shape,
                                            ContiguousStrides(parameter.shape)));
    }
    units_.push_back(std::move(memory));
  }
}

UnitGatherer::~UnitGatherer() {
  for (size_t i = 0; i < units_.size(); ++i) Release(static_cast<int>(i));
}

bool UnitGatherer::Start(int unit) {
  UnitMemory& memory = units_[unit];
  if (memory.buffer != nullptr) return false;
  memory.buffer = pool_->Take(memory.bytes);
  const at::Tensor& shard = state_->units[unit].weights;
  const at::Tensor full =
      at::from_blob(memory.buffer, {shard.numel() * memory.group->size()}, shard.options());
  memory.pending =
      memory.group->AllGather(shard, full, absl::StrCat("gather ", table_->unit(unit).name));
  return true;
}

absl::Status UnitGatherer::Acquire(int unit) {
  Start(unit);
  UnitMemory& memory = units_[unit];
  if (memory.pending == nullptr) return absl::OkStatus();
  const absl::Status status = memory.pending->Wait();
  memory.pending.reset();
  if (status.ok()) {
    SetMemory(memory.storage, memory.buffer);
  } else {
    Release(unit);
  }
  return status;
}

void UnitGatherer::Release(int unit) {
  UnitMemory& memory = units_[unit];
  if (memory.buffer == nullptr) return;
  if (memory.pending != nullptr) {
    memory.pending->Wait().IgnoreError();  // the group keeps the failure
    memory.pending.reset();
  }
  SetMemory(memory.storage, nullptr);
  pool_->GiveBack(memory.buffer, memory.bytes);
  memory.buffer = nullptr;
}

}  // namespace regroup
