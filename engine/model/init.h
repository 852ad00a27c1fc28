// Seeded initial weights.
#ifndef ENGINE_MODEL_INIT_H_
#define ENGINE_MODEL_INIT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "engine/model/load.h"
#include "engine/model/registry.h"

namespace regroup {

// A source that draws each parameter whole from a generator of its own, keyed by `seed` and the
// parameter's engine-local id: the values depend neither on the layout nor on what was drawn
// before. Keeps a copy of the table.
std::unique_ptr<WeightSource> MakeSeededWeights(const ModelDefinition& definition, uint64_t seed,
                                                const std::string& config_digest);

// The seed of the generator of parameter `id`. Its low 32 bits, all that torch's CPU generator
// takes, depend on every bit of `seed`.
uint64_t ParameterSeed(uint64_t seed, int id);

}  // namespace regroup

#endif  // ENGINE_MODEL_INIT_H_
