#include "common/schedule/adaptive_blocks.h"

#include <algorithm>

#include <fmt/format.h>

namespace atl::schedule::adaptive {
namespace {

constexpr int32_t kMaxStep = 5;

using Residues = std::array<int8_t, kKinds>;

// W takes the next free slot after its I. False when two kinds share a slot.
bool FillWeightGradients(Residues& residues) {
  std::array<bool, kKinds> taken{};
  for (int kind = 0; kind < kLaneKinds; ++kind) {
    if (taken[residues[kind]]) return false;
    taken[residues[kind]] = true;
  }
  for (int kind = kW1; kind <= kW0; ++kind) {
    int8_t slot = residues[InputGradientOf(kind)];
    while (taken[slot]) slot = static_cast<int8_t>((slot + 1) % kKinds);
    residues[kind] = slot;
    taken[slot] = true;
  }
  return true;
}

// The first slot after `slot` with this residue.
int32_t Next(int32_t slot, int32_t residue) {
  return slot + 1 + ((residue - slot - 1) % kKinds + kKinds) % kKinds;
}

// Micro-batch 0 goes through the stages and back, each work at the first slot of its residue.
void PlaceSlots(const std::vector<Residues>& residues, Block& block) {
  const auto rank_count = static_cast<int32_t>(residues.size());
  block.slots.resize(rank_count);
  int32_t slot = -1;
  const auto place = [&](int32_t rank, int kind) { slot = block.slots[rank][kind] = Next(slot, residues[rank][kind]); };
  for (int32_t r = 0; r < rank_count; ++r) place(r, kF0);
  for (int32_t r = rank_count - 1; r >= 0; --r) place(r, kF1);
  for (int32_t r = 0; r < rank_count; ++r) place(r, kI1);
  for (int32_t r = rank_count - 1; r >= 0; --r) place(r, kI0);
  for (int32_t r = 0; r < rank_count; ++r) {
    block.slots[r][kW1] = Next(block.slots[r][kI1], residues[r][kW1]);
    block.slots[r][kW0] = Next(block.slots[r][kI0], residues[r][kW0]);
  }
}

bool MakeBlock(int32_t rank_count, Block& block) {
  std::vector<Residues> residues(rank_count);
  std::copy(block.pattern.begin(), block.pattern.end(), residues[0].begin());
  if (!FillWeightGradients(residues[0])) return false;
  for (int32_t r = 1; r < rank_count; ++r) {
    const int32_t step = r <= block.switch_rank ? block.step : block.later_step;
    for (int kind = 0; kind < kLaneKinds; ++kind) {
      const bool down = kind == kF0 || kind == kI1;
      residues[r][kind] = static_cast<int8_t>((residues[r - 1][kind] + (down ? step : kKinds - 1)) % kKinds);
    }
    if (!FillWeightGradients(residues[r])) return false;
  }
  PlaceSlots(residues, block);
  return true;
}

}  // namespace

std::string ToString(const Block& block) {
  std::string text = fmt::format("pattern {} {} {} {}, offsets ({},-1)", block.pattern[0], block.pattern[1],
                                 block.pattern[2], block.pattern[3], block.step);
  if (block.later_step != block.step) {
    text += fmt::format(" to rank {}, then ({},-1)", block.switch_rank, block.later_step);
  }
  return text;
}

std::vector<Block> AllBlocks(int32_t rank_count) {
  std::vector<Block> blocks;
  Block block;
  for (int8_t f1 = 1; f1 < kKinds; ++f1) {
    for (int8_t i1 = 1; i1 < kKinds; ++i1) {
      for (int8_t i0 = 1; i0 < kKinds; ++i0) {
        if (f1 == i1 || f1 == i0 || i1 == i0) continue;
        block.pattern = {0, f1, i1, i0};
        for (block.step = 1; block.step <= kMaxStep; ++block.step) {
          for (block.later_step = 1; block.later_step <= block.step; ++block.later_step) {
            const int32_t switches = block.step == block.later_step ? 1 : rank_count - 1;
            for (block.switch_rank = 1; block.switch_rank <= switches; ++block.switch_rank) {
              if (MakeBlock(rank_count, block)) blocks.push_back(block);
            }
          }
        }
      }
    }
  }
  return blocks;
}

void Repeat(const Block& block, int32_t micro_batches, Order& order) {
  order.resize(block.slots.size());
  for (size_t r = 0; r < order.size(); ++r) {
    const auto& slots = block.slots[r];
    std::array<int32_t, kKinds> done{};
    auto& kinds = order[r];
    kinds.clear();
    for (int32_t left = kKinds * micro_batches; left > 0; --left) {
      int best = -1;
      int32_t best_slot = 0;
      for (int kind = 0; kind < kKinds; ++kind) {
        if (done[kind] == micro_batches) continue;
        const int32_t slot = slots[kind] + done[kind] * block.period;
        if (best < 0 || slot < best_slot) {
          best = kind;
          best_slot = slot;
        }
      }
      kinds.push_back(static_cast<uint8_t>(best));
      ++done[best];
    }
  }
}

void RewriteWarmUp(const Problem& problem, int32_t most_halves, Order& order) {
  const int32_t rank_count = problem.rank_count();
  for (int32_t r = 0; r < rank_count; ++r) {
    const int32_t halves = std::min(problem.ranks[r].halves, most_halves);
    const int32_t first_f1 = std::min(r + 1, halves / 2);
    const int32_t first_f0 = halves - first_f1;
    auto& kinds = order[r];
    std::array<int32_t, kKinds> left{};
    size_t end = 0;
    while (kinds[end] != kI0) ++left[kinds[end++]];
    std::array<int32_t, kKinds> done{};
    size_t at = 0;
    const auto put = [&](uint8_t kind, int32_t most) {
      if (left[kind] == 0 || done[kind] >= most) return false;
      --left[kind];
      ++done[kind];
      kinds[at++] = kind;
      return true;
    };
    for (int32_t slot = 0; slot < 2 * (rank_count - 1 - r); ++slot) put(kF0, first_f0);
    for (int32_t slot = 0; slot <= r; ++slot) {
      put(kF0, first_f0);
      put(kF1, std::min(first_f1, done[kF0]));
    }
    while (at < end) {
      put(kI1, done[kF1]);
      put(kW1, done[kI1]);
      if (!put(kF1, done[kF0])) put(kF0, problem.micro_batches);
    }
  }
}

void RewriteCoolDown(const Problem& problem, int32_t most_halves, Order& order) {
  const int32_t rank_count = problem.rank_count();
  const int32_t micro_batches = problem.micro_batches;
  for (int32_t r = 0; r < rank_count; ++r) {
    const int32_t halves = std::min(problem.ranks[r].halves, most_halves);
    const int32_t last_i0 = std::min((halves + 1) / 2, micro_batches);
    const int32_t last_i1 = std::min({r + 1, halves - last_i0, micro_batches});
    auto& kinds = order[r];
    std::array<int32_t, kKinds> done{};
    size_t out = 0;
    const auto put = [&](uint8_t kind, int32_t most) {
      if (done[kind] >= most) return;
      ++done[kind];
      kinds[out++] = kind;
    };
    // Never writes past what it has read: it only leaves out.
    for (size_t at = 0; done[kF1] < micro_batches; ++at) {
      const uint8_t kind = kinds[at];
      const int32_t most = kind >= kW1   ? done[InputGradientOf(kind)]
                           : kind == kI1 ? micro_batches - last_i1
                           : kind == kI0 ? micro_batches - last_i0
                                         : micro_batches;
      put(kind, most);
    }
    while (done[kI1] < micro_batches - last_i1) put(kI1, micro_batches);
    while (done[kI0] < micro_batches - last_i0) put(kI0, micro_batches);
    for (int32_t turn = 0; turn < std::min(last_i1, rank_count - r); ++turn) put(kI1, micro_batches);
    while (done[kI0] < micro_batches || done[kI1] < micro_batches) {
      put(kI0, micro_batches);
      put(kI1, micro_batches);
    }
    while (out < kinds.size()) {
      put(kW1, micro_batches);
      put(kW0, micro_batches);
    }
  }
}

}  // namespace atl::schedule::adaptive
