// The parameters and units of one engine, numbered 0..n-1 inside it in construction order. There is
// no process-wide counter: two engines with equal models have equal tables whatever lived before
// them.
#ifndef ENGINE_LAYOUT_PARAM_TABLE_H_
#define ENGINE_LAYOUT_PARAM_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace regroup {

enum class DType { kFp32, kBf16, kFp16 };

// "fp32", "bf16", "fp16"; and back. Errors: INVALID_ARGUMENT naming the value and what is allowed.
const char* DTypeName(DType dtype);
absl::StatusOr<DType> ParseDType(absl::string_view name);
int64_t DTypeBytes(DType dtype);

// The partition group of dense parameters: the data-parallel axis.
inline constexpr char kDataParallelGroup[] = "dp";

struct Parameter {
  int id = 0;                  // engine-local
  std::string name;            // as in the HF file, e.g. model.layers.0.mlp.up_proj.weight
  std::vector<int64_t> shape;  // of the whole parameter
  int64_t numel = 0;           // elements
  int unit = 0;                // engine-local id of its unit
  int64_t offset = 0;          // elements from the start of the unit's flat buffer
};

// The parameters that are gathered together: the granularity of gather, release and reduce.
struct Unit {
  int id = 0;                              // engine-local
  std::string name;                        // e.g. model.layers.0
  std::vector<int> parameters;             // ids, in order
  int64_t numel = 0;                       // elements of the flat buffer without padding
  std::string group = kDataParallelGroup;  // its partition group
};

// Value type; const after it was built.
class ParamTable {
 public:
  explicit ParamTable(DType dtype = DType::kFp32) : dtype_(dtype) {}

  // Adds an empty unit, returns its id.
  int AddUnit(std::string name, std::string group = kDataParallelGroup);

  // Adds a parameter at the end of the last unit, returns its id. A name may be used once
  // (CHECKed).
  int AddParameter(std::string name, std::vector<int64_t> shape);

  DType dtype() const { return dtype_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<Unit>& units() const { return units_; }
  const Parameter& parameter(int id) const { return parameters_[id]; }
  const Unit& unit(int id) const { return units_[id]; }

  // nullptr if there is none of that name.
  const Parameter* Find(absl::string_view name) const;

  int64_t total_numel() const { return total_numel_; }

  // One line a parameter: "id name [shape] dtype unit group". Ranks agree on its digest, and
  // compare the lines on a mismatch.
  std::vector<std::string> Describe() const;

 private:
  DType dtype_;
  std::vector<Parameter> parameters_;
  std::vector<Unit> units_;
  absl::flat_hash_map<std::string, int> by_name_;  // parameter ids
  int64_t total_numel_ = 0;
};

}  // namespace regroup

#endif  // ENGINE_LAYOUT_PARAM_TABLE_H_
