// The probe of a published version (docs/formats.md): points and what each network answered there when the version was
// published. A network that answers otherwise is not the one that was published, or runs on a device that computes
// something else.
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

// What a network's answers may be off by, as a share of the stored ones' norm: rounding that devices and instruction
// sets differ in, a hundred times over. bfloat16 keeps 8 bits.
inline constexpr double kProbeTolerance = 1e-3;
inline constexpr double kProbeToleranceBfloat16 = 5e-2;

// For one network of the version; nothing when the version has no probe. DATA_LOSS with reason PROBE_MALFORMED for a
// file that does not fit the version, and the errors of BlobStore::ReadVerified. Blocks.
absl::StatusOr<std::optional<StoredProbe>> ReadStoredProbe(const VersionFiles& files, int32_t expert);

// The same from the file's bytes. Pure.
absl::StatusOr<StoredProbe> ParseStoredProbe(std::string_view bytes, const storage::ModelIndex& index, int32_t expert,
                                             std::string_view file_name);

// DATA_LOSS with reason PROBE_MISMATCH, naming `name`, when `found` is further from the stored answers than
// `tolerance`. Pure.
absl::Status CheckAnswers(const StoredProbe& probe, std::span<const float> found, double tolerance,
                          std::string_view name);

}  // namespace atl::router
