#include "common/planner/fill.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"
#include "common/planner/frozen_flow.h"
#include "common/schedule/generators.h"

namespace atl::planner {
namespace {

constexpr double kUnit = 0.015;
constexpr double kFixed = 0.002;

// Two components with layers of 40, 25, 20, 10 and 5 %, and a fixed cost per sub-batch on top of what samples cost. `r`
// is their work over that of the trainable layers.
Profile TwoComponents(int32_t ranks, int32_t micro_batches, double r, int32_t batch) {
  const double total = r * micro_batches * 3 * kUnit * ranks;
  Profile profile;
  for (const char* name : {"image", "text"}) {
    FrozenComponentProfile& component = profile.frozen.emplace_back(FrozenComponentProfile{.name = name});
    for (const double share : {0.4, 0.25, 0.2, 0.1, 0.05}) {
      FrozenLayerProfile layer;
      for (int32_t samples = 1; samples <= batch; samples *= 2) {
        layer.seconds[samples] = kFixed + total / 2 * share * samples / batch;
      }
      component.layers.push_back(layer);
    }
  }
  return profile;
}

FillRequest Request(const schedule::Schedule& schedule, const Profile& profile, int32_t batch) {
  FillRequest request{.schedule = schedule, .batch = batch};
  request.readers.assign(profile.frozen.size(), {0});
  request.costs.stages.assign(
      schedule.stages, {.forward_seconds = kUnit, .input_gradient_seconds = kUnit, .weight_gradient_seconds = kUnit});
  return request;
}

// With a trainable layer, as plans need.
Profile WithLayer(Profile profile) {
  profile.parameter_bytes = {0};
  profile.layers[1] = {{}};
  return profile;
}

// Whether the pieces are every sample of every layer once, each after what it reads.
absl::Status CheckFill(const Fill& fill, const FillRequest& request, const Profile& profile) {
  Plan plan{.micro_batches = fill.schedule.micro_batches,
            .micro_batch_size = request.batch / fill.schedule.micro_batches,
            .schedule = fill.schedule,
            .frozen = fill.pieces};
  for (const FrozenComponentProfile& component : profile.frozen) {
    plan.components.push_back({.layers = static_cast<int32_t>(component.layers.size()),
                               .reads = component.reads.empty() ? -1 : component.reads.front(),
                               .to_first_stage = true});
  }
  const auto order = [](const FrozenPiece& piece) {
    return std::tuple(piece.component, piece.first_layer, piece.first_sample);
  };
  // The simulator finds the same iteration, or a shorter one: nothing arrives later than the fill counted with.
  FillRequest filled = request;
  filled.costs.frozen = CostsOf(plan, WithLayer(profile)).frozen;
  const auto simulated = schedule::Simulate(fill.schedule, filled.costs);
  if (!simulated.ok()) return simulated.status();
  EXPECT_LE(simulated->makespan_seconds, fill.iteration_seconds * (1 + 1e-9));
  EXPECT_TRUE(std::is_sorted(fill.pieces.begin(), fill.pieces.end(),
                             [&](const FrozenPiece& a, const FrozenPiece& b) { return order(a) < order(b); }));
  return FrozenFlowOf(plan).status();
}

TEST(FillBubbles, ReachesTheBoundWithinFourPercent) {
  struct Case {
    int32_t ranks;
    int32_t micro_batches;
    double r;
  };
  for (const Case& c : {Case{4, 8, 0.375}, Case{8, 16, 0.44}}) {
    const int32_t batch = 8 * c.micro_batches;
    Profile profile = TwoComponents(c.ranks, c.micro_batches, c.r, batch);
    profile.time_error = 0;
    const FillRequest request = Request(*schedule::Generate1F1B(c.ranks, c.micro_batches), profile, batch);
    const auto fill = FillBubbles(request, profile);
    ASSERT_TRUE(fill.ok()) << fill.status();
    EXPECT_TRUE(CheckFill(*fill, request, profile).ok()) << CheckFill(*fill, request, profile);
    EXPECT_TRUE(schedule::Validate(fill->schedule).ok()) << schedule::Validate(fill->schedule);
    const double bound = std::max(c.micro_batches + c.ranks - 1.0, c.micro_batches * (1 + c.r)) * 3 * kUnit;
    EXPECT_LE(fill->iteration_seconds, 1.04 * bound);
  }
}

// Whether every sample goes through all layers on one rank, and several ranks take part.
bool RanksKeepTheirSamples(const Fill& fill, int32_t batch) {
  std::map<int32_t, std::set<int32_t>> ranks_of_sample;
  std::set<int32_t> ranks;
  for (const FrozenPiece& piece : fill.pieces) {
    ranks.insert(piece.rank);
    for (int32_t i = piece.first_sample; i < piece.first_sample + piece.samples; ++i)
      ranks_of_sample[i].insert(piece.rank);
  }
  EXPECT_EQ(ranks_of_sample.size(), static_cast<size_t>(batch));
  return ranks.size() > 1 && std::all_of(ranks_of_sample.begin(), ranks_of_sample.end(),
                                         [](const auto& entry) { return entry.second.size() == 1; });
}

// A long chain of short layers: handed from rank to rank, one late piece would hold up all that follow. Exact times
// make that the shorter plan, by the cost of more calls.
TEST(FillBubbles, RanksKeepTheirSamplesWhereThatCostsLessThanTimesMayBeWrong) {
  constexpr int32_t kBatch = 32;
  Profile profile{.transfer_latency_seconds = 1e-4, .transfer_bytes_per_second = 2e9};
  FrozenLayerProfile layer{.input_bytes = 32768, .output_bytes = 32768};
  for (const int32_t samples : {4, 8, 16, 32}) layer.seconds[samples] = 4e-4 + 1e-4 * samples;
  profile.frozen.push_back({.name = "encoder", .layers = std::vector<FrozenLayerProfile>(40, layer)});
  const FillRequest request = Request(*schedule::Generate1F1B(2, 4), profile, kBatch);
  double exact = 0;
  for (const double time_error : {0.0, 0.05}) {
    profile.time_error = time_error;
    const Fill fill = *FillBubbles(request, profile);
    EXPECT_TRUE(CheckFill(fill, request, profile).ok()) << CheckFill(fill, request, profile);
    EXPECT_EQ(RanksKeepTheirSamples(fill, kBatch), time_error > 0);
    if (time_error == 0) exact = fill.iteration_seconds;
    EXPECT_LE(fill.iteration_seconds, (1 + time_error) * exact);
  }
}

TEST(FillBubbles, WithoutBubblesAllFrozenWorkFollowsTheFlush) {
  const Profile profile = TwoComponents(4, 8, 0.375, 64);
  FillRequest request = Request(*schedule::Generate1F1B(4, 8), profile, 64);
  request.in_bubbles = false;
  const Fill fill = *FillBubbles(request, profile);
  EXPECT_TRUE(CheckFill(fill, request, profile).ok()) << CheckFill(fill, request, profile);
  for (const auto& rank : fill.schedule.ranks) {
    const auto first = std::find_if(rank.begin(), rank.end(), [](const schedule::Action& action) {
      return action.kind == schedule::ActionKind::kFrozen;
    });
    EXPECT_EQ(first - rank.begin(), 16) << "8 forwards and backwards come first";
  }
  const double sequential = (8 + 3 + 8 * 0.375) * 3 * kUnit;
  EXPECT_GE(fill.iteration_seconds, sequential);
  EXPECT_LE(fill.iteration_seconds, 1.04 * sequential);
}

// Frozen pieces run when their inputs are there, one after another on each rank, and trainable actions keep their
// order.
TEST(FillBubbles, RandomCasesAreValidAndNoLongerThanOneAfterTheOther) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](uint32_t count) { return static_cast<int32_t>(random() % count); };
    const int32_t ranks = 1 + below(4);
    const int32_t micro_batches = 1 + below(6);
    const int32_t batch = micro_batches * (1 + below(5));
    Profile profile{.transfer_latency_seconds = below(2) * 0.001, .transfer_bytes_per_second = below(2) * 1e6};
    for (int32_t c = 0; c < 1 + below(3); ++c) {
      FrozenComponentProfile component{.name = "c"};
      if (c > 0 && below(2) == 0) component.reads = {below(static_cast<uint32_t>(c))};
      for (int32_t i = 0; i < 1 + below(3); ++i) {
        component.layers.push_back({.seconds = {{2, 0.001 + 0.001 * below(9)}, {16, 0.02 + 0.002 * below(9)}},
                                    .input_bytes = 100,
                                    .output_bytes = 100});
      }
      profile.frozen.push_back(component);
    }
    FillRequest request = Request(*schedule::Generate1F1B(ranks, micro_batches), profile, batch);
    request.effort = 6;
    if (below(2) == 0) request.slowdown = {2.0, 1.0, 1.0, 1.0};
    const Fill fill = *FillBubbles(request, profile);
    EXPECT_TRUE(CheckFill(fill, request, profile).ok()) << CheckFill(fill, request, profile);
    EXPECT_TRUE(schedule::Validate(fill.schedule).ok()) << schedule::Validate(fill.schedule);
    schedule::Schedule trainable = fill.schedule;
    for (auto& rank : trainable.ranks) {
      std::erase_if(rank, [](const schedule::Action& a) { return a.kind == schedule::ActionKind::kFrozen; });
    }
    trainable.frozen_pieces = 0;
    EXPECT_EQ(trainable, request.schedule);
    request.in_bubbles = false;
    EXPECT_LE(fill.iteration_seconds, FillBubbles(request, profile)->iteration_seconds * (1 + 1e-9));
  }
}

TEST(FillBubbles, RefusesAScheduleThatIsFilledAlready) {
  FillRequest request = Request(*schedule::ParseText("0F0,0B0,E0\n"), {}, 4);
  EXPECT_EQ(ErrorReason(FillBubbles(request, {}).status()), "FILL_REQUEST");
  request = Request(*schedule::Generate1F1B(1, 1), {}, 0);
  EXPECT_EQ(ErrorReason(FillBubbles(request, {}).status()), "FILL_REQUEST");
}

}  // namespace
}  // namespace atl::planner
