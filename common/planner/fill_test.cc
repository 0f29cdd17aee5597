#include "common/planner/fill.h"

#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"
#include "common/schedule/generators.h"

namespace atl::planner {
namespace {

using ::testing::HasSubstr;

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

FillRequest Request(const schedule::Schedule& schedule, int32_t batch) {
  FillRequest request{.schedule = schedule, .batch = batch};
  request.costs.stages.assign(
      schedule.stages, {.forward_seconds = kUnit, .input_gradient_seconds = kUnit, .weight_gradient_seconds = kUnit});
  return request;
}

TEST(FillBubbles, ReachesTheBoundWithinThreePercent) {
  struct Case {
    int32_t ranks;
    int32_t micro_batches;
    double r;
  };
  for (const Case& c : {Case{4, 8, 0.375}, Case{8, 16, 0.44}}) {
    const int32_t batch = 8 * c.micro_batches;
    const Profile profile = TwoComponents(c.ranks, c.micro_batches, c.r, batch);
    const FillRequest request = Request(*schedule::Generate1F1B(c.ranks, c.micro_batches), batch);
    const auto fill = FillBubbles(request, profile);
    ASSERT_TRUE(fill.ok()) << fill.status();
    EXPECT_TRUE(ValidateFrozen(fill->pieces, profile.frozen, batch, c.ranks).ok());
    EXPECT_TRUE(schedule::Validate(fill->schedule).ok()) << schedule::Validate(fill->schedule);
    const double bound = std::max(c.micro_batches + c.ranks - 1.0, c.micro_batches * (1 + c.r)) * 3 * kUnit;
    EXPECT_LE(fill->iteration_seconds, 1.03 * bound);
  }
}

TEST(FillBubbles, WithoutBubblesAllFrozenWorkFollowsTheFlush) {
  const Profile profile = TwoComponents(4, 8, 0.375, 64);
  FillRequest request = Request(*schedule::Generate1F1B(4, 8), 64);
  request.in_bubbles = false;
  const Fill fill = *FillBubbles(request, profile);
  EXPECT_TRUE(ValidateFrozen(fill.pieces, profile.frozen, 64, 4).ok());
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
    const int32_t batch = 1 + below(20);
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
    FillRequest request = Request(*schedule::Generate1F1B(ranks, 1 + below(6)), batch);
    request.effort = 6;
    if (below(2) == 0) request.slowdown = {2.0, 1.0, 1.0, 1.0};
    const Fill fill = *FillBubbles(request, profile);
    EXPECT_TRUE(ValidateFrozen(fill.pieces, profile.frozen, batch, ranks).ok())
        << ValidateFrozen(fill.pieces, profile.frozen, batch, ranks);
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
  FillRequest request = Request(*schedule::ParseText("0F0,0B0,E0\n"), 4);
  EXPECT_EQ(ErrorReason(FillBubbles(request, {}).status()), "FILL_REQUEST");
  request = Request(*schedule::Generate1F1B(1, 1), 0);
  EXPECT_EQ(ErrorReason(FillBubbles(request, {}).status()), "FILL_REQUEST");
}

std::vector<FrozenComponentProfile> OneAndTwoLayers() {
  const FrozenLayerProfile layer{.seconds = {{1, 1.0}}, .input_bytes = 3, .output_bytes = 5};
  return {{.name = "a", .layers = {layer}}, {.name = "b", .reads = {0}, .layers = {layer, layer}}};
}

std::vector<FrozenPiece> Pieces() {
  return {{0, 0, 1, 0, 0, 4}, {0, 0, 1, 1, 4, 4}, {1, 0, 1, 1, 0, 8}, {1, 1, 2, 0, 0, 2}, {1, 1, 2, 1, 2, 6}};
}

TEST(ValidateFrozen, EverySampleOfEveryLayerOnceAndInOrder) {
  const auto components = OneAndTwoLayers();
  EXPECT_TRUE(ValidateFrozen(Pieces(), components, 8, 2).ok());
  EXPECT_TRUE(ValidateFrozen({}, {}, 8, 2).ok());
  std::vector<FrozenPiece> joined = Pieces();
  joined.resize(3);
  joined[2].end_layer = 2;
  EXPECT_TRUE(ValidateFrozen(joined, components, 8, 2).ok());

  struct Bad {
    void (*change)(std::vector<FrozenPiece>*);
    const char* message;
  };
  const Bad cases[] = {
      {[](auto* p) { p->pop_back(); }, "frozen piece 4: component 1, layer 1, sample 2: expected a piece, found none"},
      {[](auto* p) { p->push_back(p->back()); }, "frozen piece 5: all work is done before it"},
      {[](auto* p) { std::swap((*p)[0], (*p)[1]); }, "frozen piece 0: expected component 0, layer 0, sample 0"},
      {[](auto* p) { (*p)[1].first_sample = 3; }, "frozen piece 1: expected component 0, layer 0, sample 4"},
      {[](auto* p) { (*p)[2].samples = 9; }, "frozen piece 2: expected 1 to 8 samples, found 9"},
      {[](auto* p) { (*p)[3].samples = 0; }, "frozen piece 3: expected 1 to 8 samples, found 0"},
      {[](auto* p) { (*p)[3].rank = 2; }, "frozen piece 3: expected a rank below 2, found 2"},
      {[](auto* p) { (*p)[3].end_layer = 3; }, "frozen piece 3: expected an end_layer from 2 to 2"},
      {[](auto* p) { (*p)[4].end_layer = 1; }, "frozen piece 4: expected an end_layer from 2 to 2"},
  };
  for (const Bad& bad : cases) {
    std::vector<FrozenPiece> pieces = Pieces();
    bad.change(&pieces);
    const absl::Status status = ValidateFrozen(pieces, components, 8, 2);
    EXPECT_EQ(ErrorReason(status), "FROZEN_PIECES") << bad.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message));
  }
}

TEST(FrozenCosts, PiecesReadThoseThatMadeTheirSamples) {
  Profile profile{.transfer_latency_seconds = 1, .transfer_bytes_per_second = 3};
  profile.frozen = OneAndTwoLayers();
  const auto costs = FrozenCosts(Pieces(), profile, {1, 2});
  ASSERT_EQ(costs.size(), 5u);
  EXPECT_THAT(costs[0].reads, testing::IsEmpty());
  EXPECT_THAT(costs[2].reads, testing::ElementsAre(0, 1));
  EXPECT_THAT(costs[4].reads, testing::ElementsAre(2));
  EXPECT_EQ(costs[0].seconds, 4);
  EXPECT_EQ(costs[1].seconds, 8) << "on the slow rank";
  EXPECT_EQ(costs[0].transfer_seconds, 0);
  EXPECT_EQ(costs[2].transfer_seconds, 1 + 8 * 3 / 3);
  EXPECT_EQ(costs[0].output_bytes, 20);
  EXPECT_EQ(costs[2].output_bytes, 0) << "read by the next layer and gone";
}

}  // namespace
}  // namespace atl::planner
