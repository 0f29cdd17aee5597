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

constexpr std::array<GeneratorInfo, 8> kInfos{{
    {"1f1b", 1, &Generate1F1B},
    {"gpipe", 1, &GenerateGPipe},
    {"interleaved-1f1b", 2, &GenerateInterleaved1F1B},
    {"zb-h1", 1, &GenerateZbH1},
    {"zb-h2", 1, &GenerateZbH2},
    {"zbv", 2, &GenerateZbv},
    {"v-half", 2, &GenerateVHalf},
    {"v-min", 2, &GenerateVMin},
}};

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
  ATOLL_ASSIGN_OR_RETURN(const GeneratorInfo info, FindGenerator(name));
  return info.generate(ranks, micro_batches);
}

}  // namespace atl::schedule
