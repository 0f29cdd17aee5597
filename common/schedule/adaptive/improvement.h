// Local search over orders: moves along the critical path, accepted if they do not lengthen it (or, early on, lengthen
// it a little). Pure and deterministic: the same order, budget and seed give the same result. For the files of this
// folder.
#pragma once

#include <cstdint>
#include <vector>

#include "common/schedule/adaptive/problem.h"

namespace atl::schedule::adaptive {

class Improvement {
 public:
  explicit Improvement(const Problem& problem);

  // Tries `budget` moves from `order`, which must fit and not deadlock; stores the best order found in it. Stops at
  // `floor`.
  Score Run(Order& order, Goal goal, int64_t budget, double floor, uint64_t seed, double temperature);

 private:
  // Moves the kind at `from` of the rank to `to`; the kinds between shift by one.
  struct Move {
    int32_t rank = 0;
    int32_t from = 0;
    int32_t to = 0;
  };

  void FindMoves(const Order& order, Goal goal);
  void AddMoves(const std::vector<uint8_t>& kinds, int32_t rank, int32_t first, int32_t last);
  bool Allowed(const std::vector<uint8_t>& kinds, const Move& move);
  static void Apply(std::vector<uint8_t>& kinds, const Move& move);

  const Problem& problem_;
  Timer timer_;
  std::vector<Move> moves_;
  Order best_;
};

}  // namespace atl::schedule::adaptive
