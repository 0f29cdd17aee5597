// The shape of what a job's model learns, where a command needs it before anything runs.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/session.h"
#include "common/spec/frozen.h"
#include "common/spec/spec.h"

namespace atl::client {

// [channels, height, width]: that of the images, or of the latents that the job's frozen components make of them. The
// images' is as `flag` gives it ("1x8x8"; INVALID_ARGUMENT, reason USAGE, for anything else), or, where that is empty,
// as the job's dataset has it.
absl::StatusOr<spec::SampleShape> FindLearntShape(const Session& session, const std::string& flag,
                                                  const spec::JobSpec& spec);

}  // namespace atl::client
