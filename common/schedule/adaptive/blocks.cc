#include "common/schedule/adaptive/blocks.h"

#include <algorithm>
#include <optional>

namespace atl::schedule::adaptive {
namespace {

constexpr int32_t kMaxStep = 5;

using Residues = std::array<int8_t, kKinds>;

struct Pattern {
  std::array<int8_t, kLaneKinds> slots{};  // of F0, F1, I1, I0 on rank 0, modulo the period
  int32_t step = 1;                        // slots from rank to rank of F0 and I1 …
  int32_t later_step = 1;                  // … and from switch_rank on
  int32_t switch_rank = 0;
};

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
  const auto place = [&](int32_t rank, int kind) { block.slots[rank][kind] = slot = Next(slot, residues[rank][kind]); };
  for (int32_t r = 0; r < rank_count; ++r) place(r, kF0);
  for (int32_t r = rank_count - 1; r >= 0; --r) place(r, kF1);
  for (int32_t r = 0; r < rank_count; ++r) place(r, kI1);
  for (int32_t r = rank_count - 1; r >= 0; --r) place(r, kI0);
  for (int32_t r = 0; r < rank_count; ++r) {
    block.slots[r][kW1] = Next(block.slots[r][kI1], residues[r][kW1]);
    block.slots[r][kW0] = Next(block.slots[r][kI0], residues[r][kW0]);
  }
}

std::optional<Block> MakeBlock(int32_t rank_count, const Pattern& pattern) {
  std::vector<Residues> residues(rank_count);
  std::copy(pattern.slots.begin(), pattern.slots.end(), residues[0].begin());
  if (!FillWeightGradients(residues[0])) return std::nullopt;
  for (int32_t r = 1; r < rank_count; ++r) {
    const int32_t step = r <= pattern.switch_rank ? pattern.step : pattern.later_step;
    for (int kind = 0; kind < kLaneKinds; ++kind) {
      const bool down = kind == kF0 || kind == kI1;
      residues[r][kind] = static_cast<int8_t>((residues[r - 1][kind] + (down ? step : kKinds - 1)) % kKinds);
    }
    if (!FillWeightGradients(residues[r])) return std::nullopt;
  }
  Block block;
  PlaceSlots(residues, block);
  return block;
}

void AddSteps(int32_t rank_count, Pattern pattern, std::vector<Block>& blocks) {
  for (pattern.step = 1; pattern.step <= kMaxStep; ++pattern.step) {
    for (pattern.later_step = 1; pattern.later_step <= pattern.step; ++pattern.later_step) {
      const int32_t switches = pattern.step == pattern.later_step ? 1 : rank_count - 1;
      for (pattern.switch_rank = 1; pattern.switch_rank <= switches; ++pattern.switch_rank) {
        if (auto block = MakeBlock(rank_count, pattern)) blocks.push_back(*std::move(block));
      }
    }
  }
}

}  // namespace

std::vector<Block> AllBlocks(int32_t rank_count) {
  std::vector<Block> blocks;
  for (int8_t f1 = 1; f1 < kKinds; ++f1) {
    for (int8_t i1 = 1; i1 < kKinds; ++i1) {
      for (int8_t i0 = 1; i0 < kKinds; ++i0) {
        if (f1 != i1 && f1 != i0 && i1 != i0) AddSteps(rank_count, {.slots = {0, f1, i1, i0}}, blocks);
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
