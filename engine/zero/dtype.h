// The engines' dtypes in torch's terms.
#ifndef ENGINE_ZERO_DTYPE_H_
#define ENGINE_ZERO_DTYPE_H_

#include <c10/core/ScalarType.h>

#include "engine/layout/param_table.h"

namespace regroup {

inline c10::ScalarType ToScalarType(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return c10::kFloat;
    case DType::kBf16:
      return c10::kBFloat16;
    case DType::kFp16:
      return c10::kHalf;
  }
  return c10::kFloat;
}

}  // namespace regroup

#endif  // ENGINE_ZERO_DTYPE_H_
