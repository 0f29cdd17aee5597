// Building blocks (Qi et al., "Pipeline Parallelism with Controllable Memory", 2024): when one micro-batch does what on
// each rank, in slots; repeated every period they are a whole schedule. Pure; for the files adaptive*.cc.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/schedule/adaptive/problem.h"

namespace atl::schedule::adaptive {

struct Block {
  int32_t period = kKinds;
  std::vector<std::array<int32_t, kKinds>> slots;  // [rank][kind]: when micro-batch 0 does it
};

// All blocks of the published form whose slots of one pass do not collide: F0 and I1 one to five slots later from rank
// to rank, F1 and I0 one slot earlier; the step may change once along the ranks.
std::vector<Block> AllBlocks(int32_t rank_count);

// The block repeated for each micro-batch, in the order of its slots.
void Repeat(const Block& block, int32_t micro_batches, Order& order);

// Rewrites each rank's work before its first I0: as many forwards first as the limit (but at most `most_halves`
// activations of a chunk) holds, the two chunks in turn once F1 comes back, then I1, W1 and the remaining forwards in
// turn. The result may not fit, or never end.
void RewriteWarmUp(const Problem& problem, int32_t most_halves, Order& order);

// The same backwards: as many input gradients as the limit allows stay for after the last F1, the two chunks in turn
// once I0 comes back, weight gradients last.
void RewriteCoolDown(const Problem& problem, int32_t most_halves, Order& order);

}  // namespace atl::schedule::adaptive
