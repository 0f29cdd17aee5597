#include "inference/expert_choice.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace atl::router {
namespace {

struct ChoiceCase {
  std::string name;
  RoutingRule rule;
  std::vector<float> posterior;
  std::vector<ExpertWeight> expected;
  std::string reason;
};

class ExpertChoiceTest : public ::testing::TestWithParam<ChoiceCase> {};

TEST_P(ExpertChoiceTest, PicksAndWeighs) {
  const ExpertChoice choice = ChooseExperts(GetParam().rule, GetParam().posterior);
  ASSERT_EQ(choice.experts.size(), GetParam().expected.size());
  for (size_t i = 0; i < choice.experts.size(); ++i) {
    EXPECT_EQ(choice.experts[i].expert, GetParam().expected[i].expert);
    EXPECT_NEAR(choice.experts[i].weight, GetParam().expected[i].weight, 1e-6);
  }
  EXPECT_EQ(choice.reason, GetParam().reason);
}

const RoutingRule kThresholdHalf{.mode = RoutingMode::kThreshold, .threshold = 0.5};
RoutingRule Nucleus(double p, double temperature = 1) {
  return {.mode = RoutingMode::kNucleus, .nucleus_p = p, .temperature = temperature};
}

const RoutingRule kThresholdFifth{.mode = RoutingMode::kThreshold, .threshold = 0.2};

INSTANTIATE_TEST_SUITE_P(
    Rows, ExpertChoiceTest,
    ::testing::Values(
        ChoiceCase{"Top1", {.top_k = 1}, {.1f, .2f, .6f, .1f}, {{2, 1}}, "top-k"},
        ChoiceCase{"TieGoesToTheLowerExpert", {.top_k = 1}, {.25f, .25f, .25f, .25f}, {{0, 1}}, "top-k"},
        ChoiceCase{"Top2Renormalises", {.top_k = 2}, {.1f, .3f, .6f, 0}, {{1, 1. / 3}, {2, 2. / 3}}, "top-k"},
        ChoiceCase{"TopKOfAllIsFull", {.top_k = 3}, {.2f, .3f, .5f}, {{0, .2}, {1, .3}, {2, .5}}, "top-k"},
        ChoiceCase{"ThresholdTakesAllThatReachIt",
                   kThresholdFifth,
                   {.2f, .1f, .3f, .4f},
                   {{0, .2 / .9}, {2, .3 / .9}, {3, .4 / .9}},
                   "reaches the threshold"},
        ChoiceCase{"ThresholdFallsBackToTheBest",
                   kThresholdHalf,
                   {.2f, .1f, .3f, .4f},
                   {{3, 1}},
                   "best, none reaches the threshold"},
        ChoiceCase{"Full", {.mode = RoutingMode::kFull}, {.2f, .8f}, {{0, .2}, {1, .8}}, "full"},
        ChoiceCase{"FullLeavesOutWeightZero", {.mode = RoutingMode::kFull}, {0, 1, 0}, {{1, 1}}, "full"},
        ChoiceCase{
            "OracleNeedsNoPosterior", {.mode = RoutingMode::kOracle, .oracle_expert = 3}, {}, {{3, 1}}, "oracle"},
        ChoiceCase{"NucleusTakesTheFewestThatReachItsShare",
                   Nucleus(0.7),
                   {.2f, .1f, .3f, .4f},
                   {{2, .3 / .7}, {3, .4 / .7}},
                   "nucleus"},
        ChoiceCase{"NucleusOfAHairMoreTakesOneMore",
                   Nucleus(0.71),
                   {.2f, .1f, .3f, .4f},
                   {{0, .2 / .9}, {2, .3 / .9}, {3, .4 / .9}},
                   "nucleus"},
        ChoiceCase{"NucleusHasAtLeastOne", Nucleus(1e-9), {.2f, .8f}, {{1, 1}}, "nucleus"},
        ChoiceCase{"NucleusOfOneIsFull", Nucleus(1), {.2f, 0, .8f}, {{0, .2}, {2, .8}}, "nucleus"},
        ChoiceCase{"NucleusOfARowThatIsNotNormalised", Nucleus(0.5), {1, 3}, {{1, 1}}, "nucleus"},
        ChoiceCase{"LowTemperatureSharpens",
                   {.mode = RoutingMode::kFull, .temperature = 0.5},
                   {.2f, .8f},
                   {{0, .04 / .68}, {1, .64 / .68}},
                   "full"},
        ChoiceCase{"HighTemperatureLevels",
                   {.mode = RoutingMode::kFull, .temperature = 2},
                   {.2f, .8f},
                   {{0, 1. / 3}, {1, 2. / 3}},
                   "full"},
        ChoiceCase{"TheThresholdIsOfTheTemperedRow",
                   {.mode = RoutingMode::kThreshold, .threshold = 0.3, .temperature = 2},
                   {.2f, .8f},
                   {{0, 1. / 3}, {1, 2. / 3}},
                   "reaches the threshold"},
        ChoiceCase{"TheNucleusIsOfTheTemperedRow", Nucleus(0.7, 0.5), {.1f, .3f, .6f}, {{2, 1}}, "nucleus"},
        ChoiceCase{"TheLowestTemperatureLeavesTheBest",
                   {.top_k = 3, .temperature = 0.01},
                   {1e-30f, 2e-30f, 0},
                   {{0, 0}, {1, 1}},
                   "top-k"}),
    [](const auto& info) { return info.param.name; });

struct MarginCase {
  std::string name;
  RoutingRule rule;
  std::vector<float> posterior;
  double expected = 0;
};

class ChoiceMarginTest : public ::testing::TestWithParam<MarginCase> {};

TEST_P(ChoiceMarginTest, IsWhatLiesBetweenTheChoiceAndAnother) {
  const ExpertChoice choice = ChooseExperts(GetParam().rule, GetParam().posterior);
  if (std::isinf(GetParam().expected)) {
    EXPECT_EQ(choice.margin, GetParam().expected);
  } else {
    EXPECT_NEAR(choice.margin, GetParam().expected, 1e-5);
  }
  EXPECT_EQ(choice.close(), GetParam().expected < kCloseMargin);
}

constexpr double kNever = std::numeric_limits<double>::infinity();

INSTANTIATE_TEST_SUITE_P(
    Rows, ChoiceMarginTest,
    ::testing::Values(
        MarginCase{"Top1AgainstTheSecond", {.top_k = 1}, {.1f, .3f, .6f}, std::log(2.0)},
        MarginCase{"Top2AgainstTheThird", {.top_k = 2}, {.1f, .3f, .6f}, std::log(3.0)},
        MarginCase{"AlmostATie", {.top_k = 1}, {.5001f, .4999f}, std::log(.5001 / .4999)},
        MarginCase{"ATie", {.top_k = 1}, {.5f, .5f}, 0},
        MarginCase{"ATieOfThoseThatAreChosenIsNone", {.top_k = 2}, {.4f, .4f, .2f}, std::log(2.0)},
        MarginCase{"AllAreChosen", {.top_k = 3}, {.1f, .3f, .6f}, kNever},
        MarginCase{"NobodyElseIsPossible", {.top_k = 2}, {0, 0, 1}, kNever},
        MarginCase{"Full", {.mode = RoutingMode::kFull}, {.5f, .5f}, kNever},
        MarginCase{"Oracle", {.mode = RoutingMode::kOracle}, {}, kNever},
        MarginCase{"ThresholdFromAbove", kThresholdFifth, {.21f, .02f, .77f}, std::log(1.05)},
        MarginCase{"ThresholdFromBelow", kThresholdFifth, {.18f, .02f, .8f}, std::log(.2 / .18)},
        MarginCase{"TheBestOfThoseBelowTheThreshold", kThresholdHalf, {.4f, .2f, .4f}, 0},
        MarginCase{"NucleusReachedWithOneMoreThanAlmost", Nucleus(.61), {.1f, .3f, .6f}, std::log(.61 / .39 / 1.5)},
        MarginCase{"NucleusOnlyJustReached", Nucleus(.59), {.1f, .3f, .6f}, std::log(1.5 / (.59 / .41))},
        MarginCase{"NucleusWithATieForItsLastPlace", Nucleus(.5), {.3f, .3f, .4f}, 0},
        MarginCase{"NucleusOfAll", Nucleus(1), {.1f, .3f, .6f}, kNever},
        MarginCase{"TemperatureChangesNoRank", {.top_k = 1, .temperature = 3}, {.1f, .3f, .6f}, std::log(2.0)}),
    [](const auto& info) { return info.param.name; });

TEST(EntropyTest, IsLogOfTheCountWhenUniformAndZeroWhenSure) {
  EXPECT_NEAR(Entropy(std::vector<float>{.25f, .25f, .25f, .25f}), std::log(4.0), 1e-6);
  EXPECT_EQ(Entropy(std::vector<float>{0, 1, 0}), 0);
}

}  // namespace
}  // namespace atl::router
