#include "engine/model/init.h"

#include <ATen/CPUGeneratorImpl.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/group/comm_status.h"
#include "engine/zero/dtype.h"

namespace regroup {
namespace {

// A bijection whose output bits each depend on all input bits (the finaliser of splitmix64).
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

class SeededWeights : public WeightSource {
 public:
  SeededWeights(const ModelDefinition& definition, uint64_t seed, std::string config_digest)
      : table_(definition.model->table()),
        initial_(definition.initial),
        seed_(seed),
        config_digest_(std::move(config_digest)) {}

  absl::StatusOr<at::Tensor> Read(int id, int64_t begin, int64_t end, DType dtype) override {
    at::Tensor value;
    const absl::Status done =
        CatchStatus(absl::StrCat("draw ", table_.parameter(id).name), [&]() -> absl::Status {
          const at::Tensor whole =
              initial_(table_.parameter(id),
                       at::make_generator<at::CPUGeneratorImpl>(ParameterSeed(seed_, id)));
          value =
              whole.reshape({whole.numel()}).narrow(0, begin, end - begin).to(ToScalarType(dtype));
          return absl::OkStatus();
        });
    if (!done.ok()) return done;
    return value;
  }

  std::vector<std::string> ContentTerms() const override {
    return {config_digest_, absl::StrCat("seed ", seed_)};
  }

 private:
  ParamTable table_;
  std::function<at::Tensor(const Parameter&, at::Generator)> initial_;
  uint64_t seed_;
  std::string config_digest_;
};

}  // namespace

std::unique_ptr<WeightSource> MakeSeededWeights(const ModelDefinition& definition, uint64_t seed,
                                                const std::string& config_digest) {
  return std::make_unique<SeededWeights>(definition, seed, config_digest);
}

uint64_t ParameterSeed(uint64_t seed, int id) { return Mix(Mix(seed) ^ static_cast<uint64_t>(id)); }

}  // namespace regroup
