// Any text: parsing either refuses it or gives a schedule that writes and reads back equal; validating and simulating
// it never reads out of bounds or hangs, and forwards of self-conditioning can be merged into what is valid.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "common/schedule/action.h"
#include "common/schedule/dependency_order.h"
#include "common/schedule/self_conditioning.h"
#include "common/schedule/simulator.h"
#include "common/schedule/timeline.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace atl::schedule;
  const auto schedule = ParseText(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!schedule.ok()) return 0;
  const auto again = ParseText(ToText(*schedule));
  if (!again.ok() || *again != *schedule) std::abort();
  SimulationCosts costs;
  costs.stages.resize(schedule->stages);
  costs.transfer_seconds = 0.25;
  costs.frozen.resize(schedule->frozen_pieces);
  for (FrozenCost& cost : costs.frozen) cost.seconds = 0.5;
  const auto simulation = Simulate(*schedule, costs);
  if (simulation.ok() != Validate(*schedule).ok()) std::abort();
  if (!simulation.ok()) return 0;
  if (!(simulation->makespan_seconds > 0)) std::abort();
  if (MemoryOverTime(costs, *simulation).size() != schedule->ranks.size()) std::abort();
  for (const Transfer& transfer : Transfers(*schedule, costs, *simulation)) {
    if (transfer.from_rank == transfer.to_rank) std::abort();
  }
  // Any valid schedule may have C's merged in.
  if (ActionIndex(*schedule).self_conditioned()) return 0;
  const Schedule merged = AddSelfConditioning(*schedule, costs);
  if (!Validate(merged).ok() || !CheckSelfConditioned(merged, *schedule).ok()) std::abort();
  return 0;
}
