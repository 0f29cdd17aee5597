// A coordinator's store as after weeks of use: many jobs, some of whose experts are being trained by islands.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/spec/task.h"

namespace atl::scale {

struct StoreShape {
  int jobs = 100;
  // A job has 12 tasks and one per expert.
  int experts_per_job = 8;
  // That many experts, those of the first jobs, are leased to an island each, named "island-0", "island-1", …; their
  // jobs' other tasks are done.
  int leases = 0;
  // Each job's failure budget: a test that has leases run out again and again wants a high one.
  int failure_budget = 5;
};

constexpr int TasksOf(const StoreShape& shape) {
  return shape.jobs * (12 + shape.experts_per_job);
}
std::string JobIdAt(int job);
std::string IslandIdAt(int island);
// Returns the request_id with which RegisterIsland treats the island as the same process as before.
std::string StartOf(int island);

// Makes <folder>/store.db and takes its epoch in the blob store at <folder>/blobs, neither of which may exist. Returns
// the tokens of the leases, by island. Files that rows name are not made: no coordinator reads them by itself.
absl::StatusOr<std::vector<spec::LeaseToken>> FillStore(const std::string& folder, const StoreShape& shape);

}  // namespace atl::scale
