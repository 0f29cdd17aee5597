#include "common/planner/partition.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"
#include "common/schedule/generators.h"

namespace atl::planner {
namespace {

using ::testing::ElementsAre;

LayerProfile Layer(double forward) {
  return {.forward_seconds = forward,
          .input_gradient_seconds = forward,
          .weight_gradient_seconds = forward,
          .backward_seconds = 2 * forward};
}

PartitionRequest Request(const std::vector<double>& forward, std::vector<int32_t> rank_of_stage) {
  PartitionRequest request;
  for (const double seconds : forward) request.layers.push_back(Layer(seconds));
  request.rank_of_stage = std::move(rank_of_stage);
  return request;
}

std::vector<int32_t> OneEach(int32_t ranks) {
  std::vector<int32_t> rank_of_stage;
  for (int32_t r = 0; r < ranks; ++r) rank_of_stage.push_back(r);
  return rank_of_stage;
}

std::vector<int32_t> V(int32_t ranks) {
  std::vector<int32_t> rank_of_stage = OneEach(ranks);
  for (int32_t r = ranks - 1; r >= 0; --r) rank_of_stage.push_back(r);
  return rank_of_stage;
}

std::vector<int32_t> Ends(const Partition& partition) {
  std::vector<int32_t> ends;
  for (const StagePlacement& placement : partition.stages) ends.push_back(placement.end_layer);
  return ends;
}

// The cost of a split with a choice of layers to recompute: written from the definitions, not from the program.
struct Judged {
  double bound = std::numeric_limits<double>::infinity();
  double rank = 0;
  double stage = 0;
  bool operator<(const Judged& other) const {
    return std::tie(bound, rank, stage) < std::tie(other.bound, other.rank, other.stage);
  }
};

std::optional<Judged> Judge(const PartitionRequest& request, const std::vector<int32_t>& ends, uint32_t recomputed) {
  const size_t stages = ends.size();
  const bool self_conditioned = request.self_conditioning_rate > 0;
  const int32_t ranks = 1 + *std::max_element(request.rank_of_stage.begin(), request.rank_of_stage.end());
  std::vector<double> work(ranks, 0);
  std::vector<double> fixed(ranks, 0);
  std::vector<double> transient(ranks, 0);
  std::vector<double> keep(stages, 0);
  std::vector<double> keep_for_weights(stages, 0);
  Judged judged{.bound = 0};
  int32_t first = 0;
  for (size_t s = 0; s < stages; ++s) {
    const int32_t rank = request.rank_of_stage[s];
    double of_stage = 0;
    for (int32_t i = first; i < ends[s]; ++i) {
      const LayerProfile& layer = request.layers[i];
      const bool again = ((recomputed >> i) & 1U) != 0;
      const double input = i == 0 ? 0 : std::min(request.layers[i - 1].output_bytes, layer.kept_bytes);
      const double backward = request.split_backward ? layer.input_gradient_seconds + layer.weight_gradient_seconds
                                                     : layer.backward_seconds;
      const double slowdown = request.slowdown.empty() ? 1 : request.slowdown[rank];
      of_stage += slowdown * (layer.forward_seconds * (request.self_conditioning_rate + (again ? 2 : 1)) + backward);
      keep[s] += again ? input : layer.kept_bytes;
      keep_for_weights[s] += layer.weight_gradient_bytes;
      transient[rank] = std::max({transient[rank], layer.forward_transient_bytes,
                                  layer.backward_transient_bytes + (again ? layer.kept_bytes - input : 0)});
      if (self_conditioned) {
        transient[rank] = std::max(transient[rank], input + layer.kept_bytes + layer.forward_transient_bytes);
      }
      if (!request.fixed_bytes.empty()) fixed[rank] += request.fixed_bytes[i];
    }
    work[rank] += of_stage;
    judged.stage = std::max(judged.stage, of_stage);
    judged.bound += of_stage;
    if (s + 1 < stages && request.rank_of_stage[s + 1] != rank) {
      if (!request.boundary_seconds.empty()) judged.bound += 2 * request.boundary_seconds[ends[s] - 1];
      fixed[rank] += request.layers[ends[s] - 1].output_bytes;
      fixed[request.rank_of_stage[s + 1]] += (self_conditioned ? 2 : 1) * request.layers[ends[s] - 1].output_bytes;
    }
    first = ends[s];
  }
  judged.rank = *std::max_element(work.begin(), work.end());
  judged.bound += (request.micro_batches - 1) * judged.rank;
  if (request.limit_bytes.empty()) return judged;
  if (self_conditioned) {
    // The last stage's output of every micro-batch, and a buffer where it is sent.
    const double feedback = request.layers.back().output_bytes;
    fixed[request.rank_of_stage.back()] += request.micro_batches * feedback;
    if (request.rank_of_stage.front() != request.rank_of_stage.back()) fixed[request.rank_of_stage.front()] += feedback;
  }
  for (int32_t rank = 0; rank < ranks; ++rank) {
    for (const HeldMicroBatches& held : request.held[rank]) {
      double bytes = fixed[rank] + transient[rank];
      size_t at = 0;
      for (size_t s = 0; s < stages; ++s) {
        if (request.rank_of_stage[s] != rank) continue;
        bytes += keep[s] * held.until_input_gradient[at] + keep_for_weights[s] * held.until_weight_gradient[at];
        ++at;
      }
      if (bytes > request.limit_bytes[rank]) return std::nullopt;
    }
  }
  return judged;
}

// The best over every split, and every set of recomputed layers that `recompute` allows.
std::optional<Judged> BruteForce(const PartitionRequest& request) {
  const auto layers = static_cast<int32_t>(request.layers.size());
  const auto stages = static_cast<int32_t>(request.rank_of_stage.size());
  const uint32_t all = (1U << layers) - 1;
  std::optional<Judged> best;
  for (uint32_t cuts = 0; cuts < 1U << (layers - 1); ++cuts) {
    std::vector<int32_t> ends;
    for (int32_t i = 0; i + 1 < layers; ++i) {
      if (((cuts >> i) & 1U) != 0) ends.push_back(i + 1);
    }
    ends.push_back(layers);
    if (static_cast<int32_t>(ends.size()) != stages) continue;
    const uint32_t least = request.recompute == Recompute::kAlways ? all : 0;
    const uint32_t most = request.recompute == Recompute::kNever ? 0 : all;
    for (uint32_t recomputed = least; recomputed <= most; ++recomputed) {
      const std::optional<Judged> judged = Judge(request, ends, recomputed);
      if (judged.has_value() && (!best.has_value() || *judged < *best)) best = judged;
    }
  }
  return best;
}

uint32_t Mask(const std::vector<int32_t>& layers) {
  uint32_t mask = 0;
  for (const int32_t i : layers) mask |= 1U << i;
  return mask;
}

// The partition is one that Judge values as much as the best of all.
void ExpectBest(const PartitionRequest& request) {
  const auto partition = PartitionLayers(request);
  const std::optional<Judged> best = BruteForce(request);
  ASSERT_EQ(partition.ok(), best.has_value()) << partition.status();
  if (!best.has_value()) {
    EXPECT_EQ(ErrorReason(partition.status()), "MEMORY_LIMIT");
    return;
  }
  const std::optional<Judged> found = Judge(request, Ends(*partition), Mask(partition->recomputed_layers));
  ASSERT_TRUE(found.has_value());
  EXPECT_NEAR(found->bound, best->bound, 1e-9 * best->bound);
  EXPECT_NEAR(found->rank, best->rank, 1e-9 * best->rank);
  EXPECT_NEAR(found->stage, best->stage, 1e-9 * best->stage);
  EXPECT_NEAR(partition->bound_seconds, best->bound, 1e-9 * best->bound);
  EXPECT_NEAR(partition->largest_rank_seconds, best->rank, 1e-9 * best->rank);
  EXPECT_NEAR(partition->largest_stage_seconds, best->stage, 1e-9 * best->stage);
}

class Random {
 public:
  explicit Random(uint32_t seed) : random_(seed) {}
  int32_t Below(int32_t count) { return static_cast<int32_t>(random_() % static_cast<uint32_t>(count)); }

  // Whole numbers of few values, so that ties are common.
  PartitionRequest Request(int32_t layers, std::vector<int32_t> rank_of_stage) {
    PartitionRequest request;
    for (int32_t i = 0; i < layers; ++i) {
      LayerProfile layer = Layer(1 + Below(4));
      layer.weight_gradient_seconds += Below(2);
      request.layers.push_back(layer);
    }
    request.rank_of_stage = std::move(rank_of_stage);
    request.micro_batches = 1 + Below(6);
    request.split_backward = Below(2) == 0;
    if (Below(3) == 0) request.self_conditioning_rate = 0.25 * (1 + Below(4));
    if (Below(2) == 0) {
      for (size_t r = 0; r < request.rank_of_stage.size(); ++r) request.slowdown.push_back(1 + 0.25 * Below(5));
    }
    if (Below(2) == 0) {
      for (int32_t i = 0; i < layers; ++i) request.boundary_seconds.push_back(0.5 * Below(8));
    }
    return request;
  }

  void AddMemory(const schedule::Schedule& schedule, PartitionRequest* request) {
    double total = 0;
    for (LayerProfile& layer : request->layers) {
      layer.output_bytes = Below(4);
      layer.kept_bytes = 2 + Below(8);
      layer.weight_gradient_bytes = Below(3);
      layer.forward_transient_bytes = Below(3);
      layer.backward_transient_bytes = Below(3);
      request->fixed_bytes.push_back(Below(6));
      total += request->fixed_bytes.back() + 2 * layer.kept_bytes;
    }
    request->held = HeldByRank(schedule);
    request->recompute = static_cast<Recompute>(Below(3));
    const double share = total / static_cast<double>(request->held.size());
    for (size_t r = 0; r < request->held.size(); ++r) {
      request->limit_bytes.push_back(std::floor(share * (0.6 + 0.3 * Below(8))));
    }
  }

 private:
  std::mt19937 random_;
};

TEST(PartitionLayers, EqualsBruteForce) {
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const int32_t layers = 1 + random.Below(8);
    const bool v = layers > 1 && random.Below(2) == 0;
    const int32_t ranks = 1 + random.Below(std::min(4, v ? layers / 2 : layers));
    ExpectBest(random.Request(layers, v ? V(ranks) : OneEach(ranks)));
  }
}

// A V on two ranks that holds an activation for a while until its weight gradient.
schedule::Schedule SmallV(int32_t ranks, int32_t micro_batches) {
  schedule::Schedule schedule{.stages = 2 * ranks, .micro_batches = micro_batches};
  schedule.rank_of_stage = V(ranks);
  schedule.ranks.resize(ranks);
  const auto add = [&](schedule::ActionKind kind, int32_t stage) {
    for (int32_t m = 0; m < micro_batches; ++m) {
      schedule.ranks[schedule.rank_of_stage[stage]].push_back({kind, stage, m});
    }
  };
  for (int32_t s = 0; s < 2 * ranks; ++s) add(schedule::ActionKind::kForward, s);
  for (int32_t s = 2 * ranks - 1; s >= 0; --s) add(schedule::ActionKind::kInputGradient, s);
  for (int32_t s = 2 * ranks - 1; s >= 0; --s) add(schedule::ActionKind::kWeightGradient, s);
  return schedule;
}

TEST(PartitionLayers, EqualsBruteForceUnderAMemoryLimitWithAChoiceToRecompute) {
  int fitting = 0;
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const int32_t layers = 2 + random.Below(6);
    const bool v = random.Below(2) == 0;
    const int32_t ranks = 1 + random.Below(std::min(4, v ? layers / 2 : layers));
    const int32_t micro_batches = 1 + random.Below(4);
    const schedule::Schedule schedule =
        v ? SmallV(ranks, micro_batches) : schedule::Generate1F1B(ranks, micro_batches).value();
    PartitionRequest request = random.Request(layers, schedule.rank_of_stage);
    request.micro_batches = micro_batches;
    random.AddMemory(schedule, &request);
    ExpectBest(request);
    fitting += PartitionLayers(request).ok() ? 1 : 0;
  }
  // Both outcomes were met.
  EXPECT_GT(fitting, 100);
  EXPECT_LT(fitting, 350);
}

TEST(PartitionLayers, StagesAreContiguousNotEmptyAndCoverAllLayers) {
  for (const auto& placement : {OneEach(4), V(2), std::vector<int32_t>{0, 1, 0, 1}}) {
    const auto partition = PartitionLayers(Request({0, 1, 1, 1, 1, 1, 1, 0}, placement));
    ASSERT_TRUE(partition.ok()) << partition.status();
    int32_t next = 0;
    for (size_t stage = 0; stage < 4; ++stage) {
      EXPECT_EQ(partition->stages[stage].rank, placement[stage]);
      EXPECT_EQ(partition->stages[stage].first_layer, next);
      EXPECT_GT(partition->stages[stage].end_layer, next);
      next = partition->stages[stage].end_layer;
    }
    EXPECT_EQ(next, 8);
  }
}

TEST(PartitionLayers, TiesChooseTheEarliest) {
  EXPECT_THAT(Ends(*PartitionLayers(Request(std::vector<double>(30, 0.1), OneEach(3)))), ElementsAre(10, 20, 30));
  EXPECT_THAT(Ends(*PartitionLayers(Request({1, 1, 1, 1, 1}, OneEach(3)))), ElementsAre(1, 3, 5));
}

TEST(PartitionLayers, ASlowRankGetsLess) {
  PartitionRequest request = Request(std::vector<double>(8, 1), OneEach(2));
  request.micro_batches = 8;
  request.slowdown = {1, 3};
  EXPECT_THAT(Ends(*PartitionLayers(request)), ElementsAre(6, 8));
}

TEST(PartitionLayers, SlowForwardsWeighMoreWhereTheyRunTwice) {
  PartitionRequest request = Request(std::vector<double>(8, 3), OneEach(2));
  for (size_t i = 0; i < 8; ++i) {
    if (i < 4) request.layers[i].backward_seconds = 1;
    if (i >= 4) request.layers[i] = {.forward_seconds = 1, .backward_seconds = 3};
  }
  EXPECT_THAT(Ends(*PartitionLayers(request)), ElementsAre(4, 8));
  request.self_conditioning_rate = 1;
  EXPECT_THAT(Ends(*PartitionLayers(request)), ElementsAre(3, 8)) << "7 a layer, then 5";
}

TEST(PartitionLayers, ACheapBoundaryIsWorthALittleUnevenness) {
  PartitionRequest request = Request({1, 1, 1, 1, 1, 1}, OneEach(2));
  request.micro_batches = 2;
  request.boundary_seconds = {9, 0, 9, 9, 9, 9};
  EXPECT_THAT(Ends(*PartitionLayers(request)), ElementsAre(2, 6));
  request.micro_batches = 50;
  EXPECT_THAT(Ends(*PartitionLayers(request)), ElementsAre(3, 6));
}

TEST(PartitionLayers, AVBalancesRanksNotStages) {
  // The first and the last layer are cheap, and lie on one rank.
  const Partition partition = *PartitionLayers(Request({0, 2, 2, 2, 2, 2, 2, 0}, V(2)));
  EXPECT_DOUBLE_EQ(partition.largest_rank_seconds, 18);
  EXPECT_THAT(Ends(partition), ElementsAre(2, 3, 5, 8));
}

TEST(PartitionLayers, ManyLayersArePlannedInGroups) {
  const Partition partition = *PartitionLayers(Request(std::vector<double>(960, 1), V(4)));
  EXPECT_EQ(partition.stages.back().end_layer, 960);
  EXPECT_DOUBLE_EQ(partition.largest_rank_seconds, 3 * 240);
}

TEST(PartitionLayers, RefusesMoreStagesThanLayers) {
  const auto many = PartitionLayers(Request({1, 1}, OneEach(3)));
  EXPECT_EQ(many.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorField(many.status()), "pipeline.stages");
  EXPECT_FALSE(PartitionLayers(Request({1, 1}, {})).ok());
  EXPECT_FALSE(PartitionLayers(Request({}, {0})).ok());
}

TEST(PartitionLayers, RoomForTheSumOfGradientsIsPartOfTheLimit) {
  PartitionRequest request = Request({1, 1, 1, 1}, OneEach(2));
  for (LayerProfile& layer : request.layers) layer.kept_bytes = 10;
  request.micro_batches = 4;
  request.fixed_bytes.assign(4, 100);
  request.held = HeldByRank(*schedule::Generate1F1B(2, 4));
  // Two layers each: the first rank holds two micro-batches of them.
  request.limit_bytes = {240, 240};
  EXPECT_TRUE(PartitionLayers(request).ok());
  // When gradients are summed no activation is left: the larger of the two counts.
  request.reduce_bytes.assign(4, 20);
  EXPECT_TRUE(PartitionLayers(request).ok());
  request.reduce_bytes.assign(4, 21);
  EXPECT_EQ(ErrorReason(PartitionLayers(request).status()), "MEMORY_LIMIT");
}

TEST(HeldByRank, OneForwardOneBackwardHoldsAsManyAsStagesFollow) {
  const auto held = HeldByRank(*schedule::Generate1F1B(3, 8));
  ASSERT_EQ(held.size(), 3u);
  for (int32_t rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(held[rank].size(), 1u);
    EXPECT_THAT(held[rank][0].until_input_gradient, ElementsAre(3 - rank));
    EXPECT_THAT(held[rank][0].until_weight_gradient, ElementsAre(0));
  }
}

TEST(HeldByRank, KeepsWhatNoOtherMomentCovers) {
  const auto held = HeldByRank(SmallV(1, 2));
  ASSERT_EQ(held.size(), 1u);
  // Both stages' forwards; then the gradients pass them on one by one.
  EXPECT_EQ(held[0].front(), (HeldMicroBatches{{2, 2}, {0, 0}}));
  EXPECT_EQ(held[0].back(), (HeldMicroBatches{{0, 0}, {2, 2}}));
  EXPECT_EQ(held[0].size(), 5u);
}

}  // namespace
}  // namespace atl::planner
