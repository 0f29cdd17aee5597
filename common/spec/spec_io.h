// Reads, writes and validates job specs. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/spec/spec.h"

namespace atl::spec {

// One value given besides the file, e.g. `--set training.steps=400`. `value` is YAML ("400", "[a, b]", "{a: b}").
struct Override {
  std::string path;
  std::string value;
};

// Reads YAML and applies `overrides`. Every error is INVALID_ARGUMENT with the field's path, the expected and the found
// value, and the line: unknown or repeated field (with the nearest known name), wrong type, number out of range, text
// that is not YAML, more than 1 MiB, nested deeper than 32, more than 100 aliases. Does not check that values are
// consistent: see Validate.
absl::StatusOr<JobSpec> ParseJobSpec(std::string_view yaml, std::string_view file_name = "job spec",
                                     const std::vector<Override>& overrides = {});

// Returns every field, defaults too, as YAML that ParseJobSpec reads back equal.
std::string ToYaml(const JobSpec& spec);

// Convert to and from the stored form of specs: every field, as JSON on one line. ParseJobSpec also reads it, but as
// slowly as any YAML, which would delay the start of a coordinator with thousands of jobs. ParseStoredJobSpec also
// reads the output of ToYaml, and has ParseJobSpec's errors.
std::string ToJson(const JobSpec& spec);
absl::StatusOr<JobSpec> ParseStoredJobSpec(std::string_view text, std::string_view name);

// OK for a valid name of a model or a dataset: 1 to 63 lower-case letters, digits and '-', starting and ending with a
// letter or digit, so that it can be a folder, a DNS label and part of a URI. `path` is for the message.
absl::Status ValidateName(std::string_view path, std::string_view name);

// Facts about the dataset that validation needs.
struct DatasetFacts {
  int64_t training_samples = 0;
  int32_t classes = 0;
  int32_t channels = 0;
  int32_t height = 0;
  int32_t width = 0;
  std::vector<std::string> columns;  // besides image and label
};

// OK, or the error of the first field that can never work. Without `dataset` (null), the checks that need it are
// skipped.
absl::Status Validate(const JobSpec& spec, const DatasetFacts* dataset);

// Returns the bytes of `pipeline.memory`: a whole number, alone or with kB, MB, GB, TB, KiB, MiB, GiB or TiB; "auto" is
// 0. INVALID_ARGUMENT with `path` for any other text.
absl::StatusOr<int64_t> ParseMemory(std::string_view path, std::string_view text);

// Returns the number of layers of a DiT of this size: embedding, blocks, head.
int32_t LayerCount(const ModelSpec& model);

// Returns the fewest ranks with which an island can train for the job: its required ranks, and at least one per
// replica.
int32_t LeastRanks(const JobSpec& spec);

}  // namespace atl::spec
