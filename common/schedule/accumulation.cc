#include "common/schedule/accumulation.h"

#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "common/base/errors.h"

namespace atl::schedule {
namespace {

bool ComputesInputGradient(ActionKind kind) {
  return kind == ActionKind::kInputGradient || kind == ActionKind::kBackward;
}

bool EndsGradients(ActionKind kind) {
  return kind == ActionKind::kWeightGradient || kind == ActionKind::kBackward;
}

}  // namespace

absl::Status AccumulatesInOrder(const Schedule& schedule) {
  std::vector<int32_t> next_input_gradient(schedule.stages, 0);
  std::vector<int32_t> next_end(schedule.stages, 0);
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (size_t position = 0; position < schedule.ranks[rank].size(); ++position) {
      const Action& action = schedule.ranks[rank][position];
      const auto check = [&](std::string_view what, int32_t* next) -> absl::Status {
        if (action.micro_batch == (*next)++) return absl::OkStatus();
        return MakeError(absl::StatusCode::kInvalidArgument, "SCHEDULE_ACCUMULATION",
                         fmt::format("schedule: rank {}, position {}, {}: expected {} of micro-batch {} before it, or "
                                     "the sums differ from those of plain training",
                                     rank, position, ToString(action), what, *next - 1));
      };
      if (ComputesInputGradient(action.kind)) {
        const absl::Status in_order = check("the input gradient", &next_input_gradient[action.stage]);
        if (!in_order.ok()) return in_order;
      }
      if (EndsGradients(action.kind)) {
        const absl::Status in_order = check("the weight gradient", &next_end[action.stage]);
        if (!in_order.ok()) return in_order;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace atl::schedule
