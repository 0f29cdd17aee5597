// Any text: parsing either refuses it or gives a schedule that writes and reads back equal; validating and simulating
// it never reads out of bounds or hangs.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "common/schedule/action.h"
#include "common/schedule/simulator.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace atl::schedule;
  const auto schedule = ParseText(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!schedule.ok()) return 0;
  const auto again = ParseText(ToText(*schedule));
  if (!again.ok() || *again != *schedule) std::abort();
  SimulationCosts costs;
  costs.stages.resize(schedule->stages);
  costs.transfer_seconds = 0.25;
  const auto simulation = Simulate(*schedule, costs);
  if (simulation.ok() != Validate(*schedule).ok()) std::abort();
  if (simulation.ok() && !(simulation->makespan_seconds > 0)) std::abort();
  return 0;
}
