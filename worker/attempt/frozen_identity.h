// Identifies frozen components and their outputs.
#pragma once

#include <string>

#include "worker/attempt/training_inputs.h"
#include "worker/trainer/trainer.h"

namespace atl::worker {

// Returns text that fully determines the components' computation: their spec, and the hashes of their files.
std::string FrozenIdentity(const trainer::TrainerOptions& options);

// Returns a name for all outputs of a task's frozen components over its samples. Tasks of any job that agree in both
// share the name.
std::string FrozenCacheKey(const TrainingInputs& inputs);

}  // namespace atl::worker
