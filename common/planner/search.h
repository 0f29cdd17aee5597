// The planner's search: which shapes a request leaves open, and which of them is best. Pure; for plan.cc.
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

// INVALID_ARGUMENT with the field for what no plan can satisfy, whatever the schedule …
absl::Status CheckRequest(const PlanRequest& request);
// … and with this one.
absl::Status CheckStages(const PlanRequest& request, const schedule::GeneratorInfo& generator);

// All shapes of one schedule that the request leaves open.
std::vector<Shape> ShapesOf(const PlanRequest& request, const schedule::GeneratorInfo& generator);

struct Found {
  Outline outline;
  Plan plan;
  double seconds = 0;     // of the iteration with its frozen work, as expected: at least this until it is placed
  bool complete = false;  // frozen work placed
};

class Search {
 public:
  // `request` outlives it. `limit_bytes` per rank; 0: none.
  Search(const PlanRequest& request, double limit_bytes)
      : request_(request), limit_bytes_(limit_bytes), evaluator_(request, limit_bytes) {}

  // Works out shapes of one schedule, but for those that cannot come near the best of them.
  void Add(const std::vector<Shape>& shapes);

  // Adaptive schedules for those of `shapes` that look best with ZBV: with its memory, and with just enough that frozen
  // work fills the bubble.
  void AddAdaptive(const std::vector<Shape>& shapes);

  // Places the frozen work of the plans that may become the best, and of each schedule's best.
  absl::Status Complete();

  // The plan with the shortest iteration; with `memory_decides`, among those that are as short, the one whose fullest
  // rank holds least. FAILED_PRECONDITION (MEMORY_LIMIT) with the least limit that has a plan, when none fits.
  absl::StatusOr<size_t> Best(bool memory_decides);
  std::optional<size_t> BestOf(std::string_view schedule) const;

  // Places the frozen work of one plan with all effort.
  absl::Status Improve(size_t i);

  const Found& found(size_t i) const { return found_[i]; }
  size_t tried() const { return found_.size(); }
  // Whether a shape of the schedule was worked out but for its memory.
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
  absl::Status refused_ = absl::OkStatus();  // the first shape that was, for other reasons than memory
};

}  // namespace atl::planner
