#include "worker/attempt/divergence.h"

#include <cmath>

#include <gtest/gtest.h>

#include "common/base/errors.h"

namespace atl::worker {
namespace {

// Feeds steps 1, 2, … with these losses; the divergence that came of it, which must be at the last one.
std::optional<Divergence> Watch(DivergenceWatch* watch, const std::vector<double>& losses) {
  std::optional<Divergence> found;
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_FALSE(found.has_value()) << "before step " << i + 1;
    const auto step = static_cast<int64_t>(i) + 1;
    found = watch->OnStep({.step = step, .loss = losses[i], .gradient_norm = 2, .first_sample = (step - 1) * 8});
  }
  return found;
}

TEST(DivergenceTest, LossesAreJudgedByTheMedianOfTheLatest) {
  struct Case {
    const char* what;
    std::vector<double> losses;
    int64_t first_bad_step;  // 0: none
    double explosion_factor = 10;
  };
  const std::vector<double> calm(12, 0.5);
  const auto after_calm = [&](std::vector<double> more) {
    more.insert(more.begin(), calm.begin(), calm.end());
    return more;
  };
  std::vector<double> falling;
  for (int i = 0; i < 100; ++i) falling.push_back(100.0 * std::pow(0.9, i));
  std::vector<double> rising;  // slowly: the median goes with it
  for (int i = 0; i < 100; ++i) rising.push_back(0.5 * std::pow(1.05, i));
  std::vector<double> late = falling;
  late.insert(late.end(), {1.5, 1.5, 1.5});
  const Case cases[] = {
      {"three in a row", after_calm({6, 7, 8}), 13},
      {"two in a row", after_calm({6, 7, 0.5, 6, 7}), 0},
      {"exactly ten times", after_calm({5, 5, 5}), 0},
      {"before there is anything to compare with", {0.5, 0.5, 50, 50, 50, 50, 50, 50}, 0},
      {"as losses fall", falling, 0},
      {"as losses rise slowly", rising, 0},
      {"above what has been small for long", late, 101},
      {"never", after_calm({60, 70, 80, 90}), 0, 0},
      {"another factor", after_calm({1.6, 1.6, 1.6}), 13, 3},
      {"a nearly perfect model that meets hard batches", std::vector<double>{1, 1, 1, 0, 0, 0, 0, 0, 0, 0, .9, .9, .9},
       0},
  };
  for (const Case& c : cases) {
    DivergenceWatch watch(c.explosion_factor);
    const std::optional<Divergence> found = Watch(&watch, c.losses);
    ASSERT_EQ(found.has_value(), c.first_bad_step > 0) << c.what;
    if (!found) continue;
    EXPECT_EQ(found->first_bad_step, c.first_bad_step) << c.what;
    EXPECT_EQ(found->step, c.first_bad_step + 2) << c.what;
    EXPECT_EQ(found->cause, "LOSS_EXPLODED") << c.what;
    ASSERT_FALSE(found->steps.empty());
    EXPECT_LE(found->steps.size(), 50u);
    EXPECT_EQ(found->steps.back().step, found->step) << c.what;
    EXPECT_EQ(found->steps.back().first_sample, (found->step - 1) * 8) << c.what;
  }
}

TEST(DivergenceTest, WhatIsNoNumberEndsItAtOnceWithWhatHadBegunToExplode) {
  struct Case {
    const char* reason;
    std::vector<double> losses;
    int64_t first_bad_step;  // of the step after these; 0: no divergence
  };
  std::vector<double> exploding(12, 0.5);
  exploding.insert(exploding.end(), {6, 7});
  const Case cases[] = {
      {"LOSS_NOT_FINITE", {}, 1},
      {"GRADIENT_NOT_FINITE", {0.5, 0.5}, 3},
      {"GRADIENT_NOT_FINITE", exploding, 13},
      {"LOST_RANK", {0.5, 0.5}, 0},
  };
  for (const Case& c : cases) {
    DivergenceWatch watch(10);
    EXPECT_FALSE(Watch(&watch, c.losses).has_value());
    const auto step = static_cast<int64_t>(c.losses.size()) + 1;
    const auto found = watch.OnFailedStep(step, 400, MakeError(absl::StatusCode::kInternal, c.reason, "found nan"));
    ASSERT_EQ(found.has_value(), c.first_bad_step > 0) << c.reason;
    if (!found) continue;
    EXPECT_EQ(found->step, step);
    EXPECT_EQ(found->first_bad_step, c.first_bad_step);
    EXPECT_EQ(found->cause, c.reason);
    EXPECT_EQ(found->message, "training diverged: found nan");
    EXPECT_TRUE(std::isnan(found->steps.back().loss));
    EXPECT_EQ(found->steps.back().first_sample, 400);
  }
}

}  // namespace
}  // namespace atl::worker
