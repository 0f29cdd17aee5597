// Job specs as text, and what makes a spec valid. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/spec/spec.h"

namespace atl::spec {

// One value given beside the file, e.g. `--set training.steps=400`. `value` is YAML ("400", "[a, b]", "{a: b}").
struct Override {
  std::string path;
  std::string value;
};

// Reads YAML and lays `overrides` over it. Every error is INVALID_ARGUMENT with the field's path, what was expected and
// what was found, and the line: unknown or repeated field (with the nearest known name), wrong type, number out of
// range, text that is not YAML, more than 1 MiB, nested deeper than 32, more than 100 aliases. Does not check that
// values make sense together: see Validate.
absl::StatusOr<JobSpec> ParseJobSpec(std::string_view yaml, std::string_view file_name = "job spec",
                                     const std::vector<Override>& overrides = {});

// Every field, defaults too, as YAML that ParseJobSpec reads back equal.
std::string ToYaml(const JobSpec& spec);

// The form in which specs are stored: every field, as JSON on one line, and back. ParseJobSpec reads it too, but as
// slowly as any YAML, which a coordinator with thousands of jobs would wait for at its start. ParseStoredJobSpec also
// reads what ToYaml wrote, and has ParseJobSpec's errors.
std::string ToJson(const JobSpec& spec);
absl::StatusOr<JobSpec> ParseStoredJobSpec(std::string_view text, std::string_view name);

// OK for a name that a model or a dataset may bear: 1 to 63 lower-case letters, digits and '-', starting and
// ending with a letter or digit, so that it can be a folder, a DNS label and part of a URI. `path` is for the message.
absl::Status ValidateName(std::string_view path, std::string_view name);

// What validation must know of the dataset.
struct DatasetFacts {
  int64_t training_samples = 0;
  int32_t classes = 0;
  int32_t channels = 0;
  int32_t height = 0;
  int32_t width = 0;
  std::vector<std::string> columns;  // besides image and label
};

// OK, or the first field that can never work. Without `dataset` (null) the checks that need it are left out.
absl::Status Validate(const JobSpec& spec, const DatasetFacts* dataset);

// Bytes of `pipeline.memory`: a whole number, alone or with kB, MB, GB, TB, KiB, MiB, GiB or TiB; "auto" is 0.
// INVALID_ARGUMENT with `path` for anything else.
absl::StatusOr<int64_t> ParseMemory(std::string_view path, std::string_view text);

// Layers of a DiT of this size: embedding, blocks, head.
int32_t LayerCount(const ModelSpec& model);

// Ranks without which an island cannot train for the job: those that it asks for, and one for each replica.
int32_t LeastRanks(const JobSpec& spec);

}  // namespace atl::spec
