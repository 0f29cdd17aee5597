// Schedules that repeat one micro-batch's building block (arXiv 2405.15362), on V placement. Pure.
//
// For the fixed schedules V-Half and V-Min, which do not depend on costs. The adaptive search has its own blocks and
// compaction (adaptive/blocks.h, adaptive/compaction.h): there weight gradients have their own slots, and compaction
// fills waits by measured seconds. Under unit costs it makes other schedules of these blocks.
#pragma once

#include <cstdint>

#include "common/schedule/action.h"

namespace atl::schedule {

// The slots, of one pass each, in which a rank runs micro-batch 0: forwards of its stages on the way down and up the V,
// then their input gradients. Micro-batch m runs 6 m slots later.
struct BuildingBlock {
  int32_t forward_down = 0;
  int32_t forward_up = 0;
  int32_t gradient_up = 0;
  int32_t gradient_down = 0;
};

// Returns the schedule of blocks[r] on rank r, with weight gradients in the free slots. It keeps the blocks' order but
// not their times: an action that waits for nothing starts at once. A rank that would wait runs a later input gradient,
// forward or weight gradient instead, if one is ready and no rank holds more activations than the fullest in the order
// of the blocks. After its last forward it runs input gradients first. The four slots of a block must differ modulo 6.
Schedule RepeatBlocks(const std::vector<BuildingBlock>& blocks, int32_t micro_batches);

}  // namespace atl::schedule
