// An inference engine on one rank: full weights, generation with a KV cache. Nothing here is
// collective.
#ifndef ENGINE_INFER_INFERENCE_ENGINE_H_
#define ENGINE_INFER_INFERENCE_ENGINE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "engine/infer/generation.h"
#include "engine/model/model.h"
#include "engine/zero/engine_state.h"

namespace regroup {

// Each row is computed on its own, and may_go_on asked before it.
class InferenceEngine : public Generator {
 public:
  // `state` is replicated: full weights, no moments. `model` outlives the engine.
  static absl::StatusOr<std::unique_ptr<InferenceEngine>> Make(const Model* model,
                                                               EngineState state);
};

}  // namespace regroup

#endif  // ENGINE_INFER_INFERENCE_ENGINE_H_
