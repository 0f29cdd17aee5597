// The measured cost of evaluating a batch, by model version and network. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "absl/time/time.h"

namespace atl::router {

// The cost is fixed + per_row x rows. On a CPU nearly all of it is per row; on a GPU small batches cost hardly more
// than one row.
struct BatchCost {
  absl::Duration fixed;
  absl::Duration per_row;  // zero: unknown

  bool known() const { return per_row > absl::ZeroDuration(); }
  absl::Duration Of(int64_t rows) const { return fixed + per_row * rows; }
  // Returns the largest batch that takes no longer, at least 1 row and at most `limit`. Requires known().
  int64_t RowsWithin(absl::Duration time, int64_t limit) const;
};

class CostEstimates {
 public:
  // Records that a batch of `rows` took `duration` on its lane. Older batches fade.
  void Record(int64_t model, int32_t network, int64_t rows, absl::Duration duration);
  // Unknown before the first measurement of the model. An unmeasured network gets the mean of the model's other
  // networks.
  BatchCost Cost(int64_t model, int32_t network) const;
  // Returns what this network's own batches took; not known before one was measured.
  BatchCost Measured(int64_t model, int32_t network) const;
  void Forget(int64_t model);

 private:
  // Faded sums over batches, of rows and seconds.
  struct Fit {
    double count = 0;
    double rows = 0;
    double seconds = 0;
    double rows_squared = 0;
    double rows_seconds = 0;
    BatchCost Line() const;
  };
  std::map<std::pair<int64_t, int32_t>, Fit> fits_;  // by model and network
};

}  // namespace atl::router
