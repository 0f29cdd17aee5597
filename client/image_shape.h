// The size of a job's images, where a command needs it before anything runs.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/session.h"

namespace atl::client {

struct ImageShape {
  int32_t channels = 0;
  int32_t height = 0;
  int32_t width = 0;
};

// As `flag` gives it ("1x8x8": channels, height, width; INVALID_ARGUMENT, reason USAGE, for anything else), or, where
// that is empty, as the dataset of this name has it.
absl::StatusOr<ImageShape> FindImageShape(const Session& session, const std::string& flag,
                                          const std::string& dataset_name);

}  // namespace atl::client
