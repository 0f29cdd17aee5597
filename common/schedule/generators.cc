#include "common/schedule/generators.h"

#include <array>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/errors.h"
#include "common/schedule/shape.h"

namespace atl::schedule {
namespace {

constexpr int64_t kMaxStageMicroBatches = 1'000'000;

struct Generator {
  std::string_view name;
  absl::StatusOr<Schedule> (*generate)(int32_t stages, int32_t micro_batches);
};

constexpr std::array<Generator, 2> kGenerators{{{"1f1b", &Generate1F1B}, {"gpipe", &GenerateGPipe}}};

}  // namespace

absl::Status CheckCounts(int32_t stages, int32_t micro_batches) {
  if (stages < 1 || micro_batches < 1) {
    return MakeError(absl::StatusCode::kInvalidArgument, "SCHEDULE_COUNTS",
                     fmt::format("schedule: expected at least one stage and one micro-batch, found {} and {}", stages,
                                 micro_batches));
  }
  if (int64_t{stages} * micro_batches > kMaxStageMicroBatches) {
    return MakeError(absl::StatusCode::kInvalidArgument, "SCHEDULE_COUNTS",
                     fmt::format("schedule: expected stages x micro-batches of at most {}, found {} x {}",
                                 kMaxStageMicroBatches, stages, micro_batches));
  }
  return absl::OkStatus();
}

Schedule OneStagePerRank(int32_t stages, int32_t micro_batches) {
  Schedule schedule{.stages = stages, .micro_batches = micro_batches};
  schedule.ranks.resize(stages);
  schedule.rank_of_stage.resize(stages);
  for (int32_t stage = 0; stage < stages; ++stage) schedule.rank_of_stage[stage] = stage;
  return schedule;
}

absl::StatusOr<Schedule> Generate(std::string_view name, int32_t stages, int32_t micro_batches) {
  for (const Generator& generator : kGenerators) {
    if (generator.name == name) return generator.generate(stages, micro_batches);
  }
  return MakeError(absl::StatusCode::kInvalidArgument, "SCHEDULE_UNKNOWN",
                   fmt::format("schedule: expected one of {}, found '{}'", fmt::join(GeneratorNames(), ", "), name));
}

std::vector<std::string_view> GeneratorNames() {
  std::vector<std::string_view> names;
  for (const Generator& generator : kGenerators) names.push_back(generator.name);
  return names;
}

}  // namespace atl::schedule
