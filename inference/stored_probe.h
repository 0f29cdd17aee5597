// The probe of a published version (docs/formats.md): points, and the answers of each network at them when the version
// was published. If a network answers otherwise, it is not the published one, or its device computes something else.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "inference/rows.h"
#include "inference/version_files.h"

namespace atl::router {

struct StoredProbe {
  Rows rows;
  std::vector<float> answers;  // of one network: velocities shaped as rows.x, or probabilities
};

// The largest accepted deviation of a network's answers, relative to the norm of the stored ones. It is a hundred times
// the rounding by which devices and instruction sets differ; bfloat16 keeps 8 bits.
inline constexpr double kProbeTolerance = 1e-3;
inline constexpr double kProbeToleranceBfloat16 = 5e-2;

// Reads the probe of one network of the version; returns nullopt if the version has no probe. Returns DATA_LOSS with
// reason PROBE_MALFORMED for a file that does not fit the version, and the errors of BlobStore::ReadVerified. Blocks.
absl::StatusOr<std::optional<StoredProbe>> ReadStoredProbe(const VersionFiles& files, int32_t expert);

// Like ReadStoredProbe, from the file's bytes. Pure.
absl::StatusOr<StoredProbe> ParseStoredProbe(std::string_view bytes, const storage::ModelIndex& index, int32_t expert,
                                             std::string_view file_name);

// Returns DATA_LOSS with reason PROBE_MISMATCH, naming `name`, if `found` deviates from the stored answers by more than
// `tolerance`. Pure.
absl::Status CheckAnswers(const StoredProbe& probe, std::span<const float> found, double tolerance,
                          std::string_view name);

}  // namespace atl::router
