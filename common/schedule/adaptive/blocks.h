// Building blocks (Qi et al., "Pipeline Parallelism with Controllable Memory", 2024): the slots in which one
// micro-batch runs on each rank. Repeated every period, they form a whole schedule. Pure; for the files of this folder.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/schedule/adaptive/problem.h"

namespace atl::schedule::adaptive {

struct Block {
  int32_t period = kKinds;
  std::vector<std::array<int32_t, kKinds>> slots;  // [rank][kind]: the slot of micro-batch 0
};

// Returns all blocks of the published form whose slots of one pass do not collide: F0 and I1 one to five slots later
// from rank to rank, F1 and I0 one slot earlier; the step may change once along the ranks.
std::vector<Block> AllBlocks(int32_t rank_count);

// Repeats the block for each micro-batch, in the order of its slots.
void Repeat(const Block& block, int32_t micro_batches, Order& order);

// Rewrites each rank's work before its first I0: first as many forwards as the limit (but at most `most_halves`
// activations of a chunk) holds, the two chunks in turn once F1 comes back, then I1, W1 and the remaining forwards in
// turn. The result may exceed the limit or deadlock.
void RewriteWarmUp(const Problem& problem, int32_t most_halves, Order& order);

// The same for the end: after the last F1, as many input gradients remain as the limit allows, the two chunks in turn
// once I0 comes back, weight gradients last.
void RewriteCoolDown(const Problem& problem, int32_t most_halves, Order& order);

}  // namespace atl::schedule::adaptive
