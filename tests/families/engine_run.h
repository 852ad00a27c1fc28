// Trains and generates with the engine layer, ranks as threads.
#ifndef TESTS_FAMILIES_ENGINE_RUN_H_
#define TESTS_FAMILIES_ENGINE_RUN_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/layout/engine_spec.h"
#include "engine/model/load.h"
#include "engine/train/trainer.h"
#include "engine/zero/engine_state.h"

namespace regroup {

// The model of `folder` or random:FOLDER. Fails the test on an error.
LoadedModel Load(const std::string& spec);

// AdamW with torch's defaults and this learning rate.
EngineSpec AdamWSpec(double learning_rate);

// Makes a trainer of `model` (a SPEC) on each of `ranks` and runs `body` on all at once.
void RunTrainers(const std::vector<int>& ranks, EngineSpec spec, const std::string& model,
                 const std::function<void(int rank, Trainer& trainer)>& body);

// Collective over the trainer's ranks: all of its weights on the lead, as an inference engine holds
// them; an empty state elsewhere.
EngineState GatheredState(Trainer& trainer, const ParamTable& table, int rank);

// The initial weights of a loaded model, whole.
EngineState InitialState(LoadedModel& model);

// Greedy continuation of one prompt by an inference engine with `state`.
std::vector<int64_t> Generate(const Model& model, EngineState state,
                              const std::vector<int64_t>& prompt, int64_t max_tokens);

// A token file of 16-bit ids.
std::string TokenBytes(const std::vector<int64_t>& tokens);

}  // namespace regroup

#endif  // TESTS_FAMILIES_ENGINE_RUN_H_
