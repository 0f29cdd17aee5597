// Schedules that repeat one micro-batch's building block (arXiv 2405.15362), on V placement. Pure.
//
// For the fixed schedules, V-Half and V-Min: what they are does not depend on costs, and stays what it is. The adaptive
// search has blocks and a compaction of its own (adaptive_blocks.h, adaptive_compaction.h), whose weight gradients have
// slots of their own and which fills waits by measured seconds: under unit costs they make other schedules of these
// blocks.
#pragma once

#include <cstdint>

#include "common/schedule/action.h"

namespace atl::schedule {

// When, in slots of one pass each, a rank runs micro-batch 0: forwards of its stages on the way down and up the V, then
// their input gradients. Micro-batch m runs 6 m slots later.
struct BuildingBlock {
  int32_t forward_down = 0;
  int32_t forward_up = 0;
  int32_t gradient_up = 0;
  int32_t gradient_down = 0;
};

// The schedule of blocks[r] on rank r, weight gradients in the slots that stay free. The order is the blocks', its
// times are not: what waits for nothing starts at once. A rank that would wait runs a later input gradient, forward or
// weight gradient instead, if one is ready and no rank holds more activations than the fullest in the order of the
// blocks; after its last forward it runs input gradients first. The four slots of a block must differ modulo 6.
Schedule RepeatBlocks(const std::vector<BuildingBlock>& blocks, int32_t micro_batches);

}  // namespace atl::schedule
