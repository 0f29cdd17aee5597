// The planner's search: enumerates the shapes that a request leaves open and finds the best. Pure; for plan.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/planner/evaluate.h"
#include "common/planner/plan.h"
#include "common/schedule/generators.h"

namespace atl::planner {

// INVALID_ARGUMENT with the field if no plan can satisfy the request with any schedule …
absl::Status CheckRequest(const PlanRequest& request);
// … or with this one.
absl::Status CheckStages(const PlanRequest& request, const schedule::GeneratorInfo& generator);

// Returns all shapes of one schedule that the request leaves open.
std::vector<Shape> ShapesOf(const PlanRequest& request, const schedule::GeneratorInfo& generator);

struct Found {
  Outline outline;
  Plan plan;
  double seconds = 0;     // expected, of the iteration with its frozen work; a lower bound until that is placed
  bool complete = false;  // frozen work placed
};

class Search {
 public:
  // `request` outlives it. `limit_bytes` per rank; 0: none.
  Search(const PlanRequest& request, double limit_bytes)
      : request_(request), limit_bytes_(limit_bytes), evaluator_(request, limit_bytes) {}

  // Evaluates shapes of one schedule, except those that cannot come near the best of them.
  void Add(const std::vector<Shape>& shapes);

  // Adds adaptive schedules for the `shapes` that look best with ZBV: with ZBV's memory, and with just enough memory
  // that frozen work fills the bubble.
  void AddAdaptive(const std::vector<Shape>& shapes);

  // Places the frozen work of the plans that may become the best, and of each schedule's best.
  absl::Status Complete();

  // Returns the plan with the shortest iteration; with `memory_decides`, among equally short ones, the one whose
  // fullest rank holds least. FAILED_PRECONDITION (MEMORY_LIMIT) if none fits, with the least limit that has a plan.
  absl::StatusOr<size_t> Best(bool memory_decides);
  std::optional<size_t> BestOf(std::string_view schedule) const;

  // Places the frozen work of one plan with full effort.
  absl::Status Improve(size_t i);

  const Found& found(size_t i) const { return found_[i]; }
  size_t tried() const { return found_.size(); }
  // Returns whether a shape of the schedule was rejected only for its memory.
  bool TooLarge(std::string_view schedule) const;
  bool AnyTooLarge() const { return !too_large_.empty(); }

 private:
  absl::Status CompleteOne(Found* found, int32_t effort);
  absl::Status MemoryError();

  const PlanRequest& request_;
  const double limit_bytes_;
  Evaluator evaluator_;
  std::vector<Found> found_;
  std::vector<Shape> too_large_;
  absl::Status refused_ = absl::OkStatus();  // error of the first shape rejected for another reason than memory
};

}  // namespace atl::planner
