// What tells frozen components, and their outputs, from others.
#pragma once

#include <string>

#include "worker/attempt/training_inputs.h"
#include "worker/trainer/trainer.h"

namespace atl::worker {

// Everything that says what the components compute, as text: their spec, and the hashes of their files.
std::string FrozenIdentity(const trainer::TrainerOptions& options);

// A name for all outputs of a task's frozen components over its samples: tasks of any job that share both share it.
std::string FrozenCacheKey(const TrainingInputs& inputs);

}  // namespace atl::worker
