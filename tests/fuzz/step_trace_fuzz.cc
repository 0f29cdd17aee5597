// Step traces as JSON, and their names, from a blob store that others write too.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "common/formats/step_trace.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)atl::storage::ParseStepTraceName(text);
  const auto parsed = atl::storage::ParseStepTrace(text, "fuzz");
  if (!parsed.ok()) return 0;
  // An accepted text must be written so that it reads back equal.
  const auto again = atl::storage::ParseStepTrace(atl::storage::ToJson(*parsed), "fuzz");
  if (!again.ok() || !(*again == *parsed)) std::abort();
  // A rank of the same boot that began at no time at all.
  atl::storage::StepTrace other = *parsed;
  other.start_monotonic = absl::ZeroDuration();
  other.start_time = absl::UnixEpoch();
  for (const absl::Duration start : atl::storage::AlignedStarts({*parsed, other})) {
    if (start < absl::ZeroDuration()) std::abort();
  }
  return 0;
}
