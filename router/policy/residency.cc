#include "router/policy/residency.h"

#include <algorithm>
#include <tuple>

#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::router {

ResidencyDecision DecideResidency(int64_t bytes, std::span<const ResidentNetwork> resident, int64_t budget) {
  if (budget == 0) return {.reason = "memory has no limit"};
  if (bytes > budget) {
    return {.action = ResidencyAction::kRefuse,
            .bytes_missing = bytes - budget,
            .reason = fmt::format("{} bytes do not fit a budget of {}", bytes, budget)};
  }
  int64_t missing = bytes - budget;
  std::vector<const ResidentNetwork*> unused;
  for (const ResidentNetwork& network : resident) {
    missing += network.bytes;
    if (network.pins == 0) unused.push_back(&network);
  }
  if (missing <= 0) return {.reason = "there is room"};
  std::sort(unused.begin(), unused.end(), [](const ResidentNetwork* a, const ResidentNetwork* b) {
    return std::tuple(!a->elsewhere, !a->unasked, a->last_used, a->id) <
           std::tuple(!b->elsewhere, !b->unasked, b->last_used, b->id);
  });
  ResidencyDecision decision;
  for (const ResidentNetwork* network : unused) {
    if (missing <= 0) break;
    decision.evict.push_back(network->id);
    missing -= network->bytes;
  }
  if (missing <= 0) {
    decision.reason = fmt::format("{} networks that lie elsewhere too, or were not used for longest, give way",
                                  decision.evict.size());
    return decision;
  }
  return {.action = ResidencyAction::kWait,
          .bytes_missing = missing,
          .reason = fmt::format("{} bytes more are held by batches under way", missing)};
}

absl::Status DoesNotFitStatus(const NetworkId& id, int64_t bytes, int64_t budget) {
  return MakeError(absl::StatusCode::kResourceExhausted, "EXPERT_DOES_NOT_FIT",
                   fmt::format("{}: expected a memory budget of at least {} bytes for its weights, found {}",
                               Describe(id), bytes, budget));
}

}  // namespace atl::router
