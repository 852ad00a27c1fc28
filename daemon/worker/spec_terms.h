// What ranks of an engine must mean alike of its spec, in words.
#ifndef DAEMON_WORKER_SPEC_TERMS_H_
#define DAEMON_WORKER_SPEC_TERMS_H_

#include <string>
#include <vector>

#include "engine/layout/engine_spec.h"

namespace regroup {

// How steps and checks go, for Agree, a value a line: the clip norm, what EngineSettings may change
// (checks, timeout), and of a trainer the optimizer with its numbers. Equal lines are equal values.
std::vector<std::string> SettingsTerms(const EngineSpec& spec);

}  // namespace regroup

#endif  // DAEMON_WORKER_SPEC_TERMS_H_
