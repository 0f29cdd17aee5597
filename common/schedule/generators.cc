#include "common/schedule/generators.h"

#include <algorithm>
#include <array>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"

namespace atl::schedule {
namespace {

using GenerateFunction = absl::StatusOr<Schedule> (*)(int32_t ranks, int32_t micro_batches);

constexpr std::array<GeneratorInfo, 8> kInfos{{
    {"1f1b", 1, false},
    {"gpipe", 1, false},
    {"interleaved-1f1b", 2, false},
    {"zb-h1", 1, true},
    {"zb-h2", 1, true},
    {"zbv", 2, true},
    {"v-half", 2, true},
    {"v-min", 2, true},
}};

constexpr std::array<GenerateFunction, kInfos.size()> kFunctions{
    &Generate1F1B, &GenerateGPipe, &GenerateInterleaved1F1B, &GenerateZbH1,
    &GenerateZbH2, &GenerateZbv,   &GenerateVHalf,           &GenerateVMin,
};

}  // namespace

std::span<const GeneratorInfo> Generators() {
  return kInfos;
}

std::vector<std::string_view> GeneratorNames() {
  std::vector<std::string_view> names;
  for (const GeneratorInfo& info : kInfos) names.push_back(info.name);
  return names;
}

absl::StatusOr<GeneratorInfo> FindGenerator(std::string_view name) {
  const auto* const info =
      std::find_if(kInfos.begin(), kInfos.end(), [name](const GeneratorInfo& known) { return known.name == name; });
  if (info != kInfos.end()) return *info;
  return MakeError(absl::StatusCode::kInvalidArgument, "SCHEDULE_UNKNOWN",
                   fmt::format("schedule: expected one of {}, found '{}'", fmt::join(GeneratorNames(), ", "), name));
}

absl::StatusOr<Schedule> Generate(std::string_view name, int32_t ranks, int32_t micro_batches) {
  for (size_t i = 0; i < kInfos.size(); ++i) {
    if (kInfos[i].name == name) return kFunctions[i](ranks, micro_batches);
  }
  return FindGenerator(name).status();
}

}  // namespace atl::schedule
