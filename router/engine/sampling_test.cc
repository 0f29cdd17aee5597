// The arithmetic of sampling, on formulas whose answer is known.
#include <cmath>

#include "common/base/fake_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/engine/engine.h"
#include "router/engine/testing/fake_backend.h"
#include "router/engine/testing/recorded_events.h"
#include "router/engine/testing/serve_inline.h"
#include "router/engine/testing/ticked_engine.h"

namespace atl::router {
namespace {

SamplerInfo Info() {
  return {.model = "m", .version = "v", .experts = 2, .classes = 2, .channels = 1, .height = 2, .width = 2};
}

class SamplingTest : public ::testing::Test {
 protected:
  // Samples all images of one request, raw.
  std::vector<std::vector<float>> Sample(SampleRequest request) {
    request.format = ImageFormat::kRaw;
    FakeClock clock;
    TickedEngine engine({}, &clock, nullptr);
    ServeInline(&engine, backend_, &clock);
    const auto events = std::make_shared<RecordedEvents>();
    const auto ticket = engine.Submit(request, absl::InfiniteDuration(), events);
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    for (int i = 0; i < 1000 && engine.RunTick(); ++i) {
    }
    EXPECT_EQ(events->log().back(), "done") << events->status();
    report_ = events->report();
    std::vector<std::vector<float>> images;
    for (size_t i = 0; i < request.classes.size(); ++i) images.push_back(events->Pixels(static_cast<int32_t>(i)));
    return images;
  }

  std::shared_ptr<FakeBackend> backend_ = std::make_shared<FakeBackend>(Info());
  SampleReport report_;
};

// Data N(0, s^2): the exact velocity is linear in x, and the flow takes noise z to s z.
constexpr double kSpread = 0.4;

void UseGaussianFlow(FakeBackend* backend) {
  backend->velocity = [](int32_t, std::span<const float> x, float t, int64_t) {
    const double variance = (1 - t) * (1 - t) * kSpread * kSpread + t * t;
    const double slope = (t - (1 - t) * kSpread * kSpread) / variance;
    std::vector<float> velocity;
    for (const float value : x) velocity.push_back(static_cast<float>(slope * value));
    return velocity;
  };
}

TEST_F(SamplingTest, HeunAndMultistepConvergeWithOrderTwoAndEulerWithOrderOne) {
  UseGaussianFlow(backend_.get());
  const auto error = [&](Solver solver, int32_t steps) {
    SampleRequest request{.classes = {-1, -1, -1, -1}, .seeds = {11}, .solver = solver, .steps = steps};
    const auto images = Sample(request);
    ActiveRequest start{.order = {.images = {{-1, 11}, {-1, 12}, {-1, 13}, {-1, 14}}},
                        .model = std::make_shared<ServedVersion>(ServedVersion{.info = backend_->info()})};
    StartImages(&start);
    double sum = 0;
    for (size_t i = 0; i < images.size(); ++i) {
      for (size_t p = 0; p < images[i].size(); ++p) {
        sum += std::pow(images[i][p] - kSpread * std::next(start.images.begin(), static_cast<ptrdiff_t>(i))->state.x[p],
                        2);
      }
    }
    return std::sqrt(sum);
  };
  const double euler = error(Solver::kEuler, 40) / error(Solver::kEuler, 80);
  const double heun = error(Solver::kHeun, 20) / error(Solver::kHeun, 40);
  EXPECT_NEAR(euler, 2.0, 0.3);
  EXPECT_GT(heun, 3.0);
  EXPECT_LT(error(Solver::kHeun, 40), 0.2 * error(Solver::kEuler, 80)) << "at the same number of evaluations";
  const double multistep = error(Solver::kMultistep, 100) / error(Solver::kMultistep, 200);
  EXPECT_GT(multistep, 3.0);
  EXPECT_LT(error(Solver::kMultistep, 80), 0.2 * error(Solver::kEuler, 80)) << "at the same number of evaluations";
}

TEST_F(SamplingTest, NoiseIsAFunctionOfTheSeedAlone) {
  const auto alone = Sample({.classes = {-1}, .seeds = {7}, .steps = 1});
  const auto among = Sample({.classes = {1, 0, -1, 1}, .seeds = {1, 2, 7, 7}, .steps = 1});
  EXPECT_EQ(alone[0], among[2]);
  EXPECT_EQ(alone[0], among[3]);
  EXPECT_NE(among[0], among[1]);
}

// Expert e answers e + 1 for a class and -(e + 1) for the null class.
void UseConstantExperts(FakeBackend* backend) {
  backend->velocity = [](int32_t expert, std::span<const float> x, float, int64_t class_row) {
    const bool null_class = class_row == Info().classes;
    return std::vector<float>(x.size(), static_cast<float>((expert + 1) * (null_class ? -1 : 1)));
  };
}

// Displacement of an image's first pixel over the whole flow: minus the velocity, when that is constant.
float Displacement(const std::vector<float>& image, const std::vector<float>& start) {
  return image[0] - start[0];
}

TEST_F(SamplingTest, GuidanceExtrapolatesFromTheNullBranchOfTheSameExpert) {
  const auto start = Sample({.classes = {1}, .seeds = {3}, .steps = 4});
  UseConstantExperts(backend_.get());
  SampleRequest request{.classes = {1}, .seeds = {3}, .steps = 4};
  for (const double guidance : {0.0, 1.0, 2.0, 3.5}) {
    request.guidance = guidance;
    // Class 1 goes to expert 1: v_class = 2, v_null = -2.
    EXPECT_NEAR(Displacement(Sample(request)[0], start[0]), -(-2 + guidance * 4), 1e-4) << "guidance " << guidance;
  }
}

TEST_F(SamplingTest, GuidanceOneEvaluatesTheClassBranchAlone) {
  UseConstantExperts(backend_.get());
  SampleRequest request{.classes = {1}, .steps = 1};
  request.guidance = 1.0;
  Sample(request);
  EXPECT_EQ(backend_->TakeSeen().back(), (FakeBackend::SeenBatch{1, 1}));
  request.guidance = 2.0;
  Sample(request);
  EXPECT_EQ(backend_->TakeSeen().back(), (FakeBackend::SeenBatch{1, 2}));
}

TEST_F(SamplingTest, AnImageWithoutAClassShowsTheNullClassToRouterAndExperts) {
  std::vector<int64_t> shown;
  backend_->posterior = [&](std::span<const float>, float, int64_t class_row) {
    shown.push_back(class_row);
    return std::vector<float>{1, 0};
  };
  backend_->velocity = [&](int32_t, std::span<const float> x, float, int64_t class_row) {
    shown.push_back(class_row);
    return std::vector<float>(x.size(), 0);
  };
  Sample({.classes = {-1}, .steps = 1});
  EXPECT_THAT(shown, ::testing::ElementsAre(2, 2));
}

TEST_F(SamplingTest, ModesWeighExpertsAsTheyPromise) {
  const auto start = Sample({.classes = {-1}, .seeds = {3}, .steps = 2});
  backend_->posterior = [](std::span<const float>, float, int64_t) { return std::vector<float>{.25f, .75f}; };
  backend_->velocity = [](int32_t expert, std::span<const float> x, float, int64_t) {
    return std::vector<float>(x.size(), expert == 0 ? 1.0f : 2.0f);
  };
  const auto velocity_of = [&](RoutingRule rule) {
    return -Displacement(Sample({.classes = {-1}, .seeds = {3}, .routing = rule, .steps = 2})[0], start[0]);
  };
  EXPECT_NEAR(velocity_of({.top_k = 1}), 2.0, 1e-5);
  EXPECT_NEAR(velocity_of({.top_k = 2}), 1.75, 1e-5);
  EXPECT_NEAR(velocity_of({.mode = RoutingMode::kFull}), 1.75, 1e-5);
  EXPECT_THAT(report_.routing.chosen, ::testing::ElementsAre(2, 2));
  EXPECT_THAT(report_.routing.weight, ::testing::ElementsAre(0.5, 1.5));
  EXPECT_NEAR(velocity_of({.mode = RoutingMode::kThreshold, .threshold = 0.3}), 2.0, 1e-5);
  EXPECT_NEAR(velocity_of({.mode = RoutingMode::kThreshold, .threshold = 0.9}), 2.0, 1e-5);
  EXPECT_NEAR(velocity_of({.mode = RoutingMode::kOracle, .oracle_expert = 0}), 1.0, 1e-5);
}

TEST_F(SamplingTest, TheReportCountsChangesOfExpertAndCloseCalls) {
  backend_->posterior = [](std::span<const float>, float t, int64_t class_row) {
    if (class_row == 1) return std::vector<float>{.3f, .7f};
    // At 1, 0.75, 0.5 and 0.25: expert 1, 0 by a hair, 0, 1.
    if (t == 0.75f) return std::vector<float>{.50002f, .49998f};
    return t == 0.5f ? std::vector<float>{.9f, .1f} : std::vector<float>{.2f, .8f};
  };
  Sample({.classes = {0, 1}, .steps = 4});
  EXPECT_EQ(report_.routing.image_steps, 8);
  EXPECT_EQ(report_.routing.switches, 2);
  EXPECT_EQ(report_.routing.close_calls, 1);
  Sample({.classes = {0}, .routing = {.mode = RoutingMode::kFull}, .steps = 4});
  EXPECT_EQ(report_.routing.switches, 0);
  EXPECT_EQ(report_.routing.close_calls, 0) << "whatever the router network answers, all of them draw";
  Sample({.classes = {0}, .routing = {.mode = RoutingMode::kOracle}, .steps = 4});
  EXPECT_EQ(report_.routing.switches + report_.routing.close_calls, 0);
}

TEST_F(SamplingTest, GuidanceActsInItsIntervalAlone) {
  const auto start = Sample({.classes = {1}, .seeds = {3}, .steps = 4});
  UseConstantExperts(backend_.get());
  SampleRequest request{.classes = {1}, .seeds = {3}, .steps = 4};
  request.guidance = 3.0;
  request.guidance_from = 0.4;
  request.guidance_to = 0.8;
  backend_->TakeSeen();
  // Steps from 1, 0.75, 0.5 and 0.25: two of them guided. v_class = 2, v_guided = -2 + 3 * 4.
  EXPECT_NEAR(Displacement(Sample(request)[0], start[0]), -(2 * 2 + 2 * 10) / 4.0, 1e-4);
  using Seen = FakeBackend::SeenBatch;
  EXPECT_THAT(backend_->TakeSeen(), ::testing::ElementsAre(Seen{-1, 1}, Seen{1, 1}, Seen{-1, 1}, Seen{1, 2},
                                                           Seen{-1, 1}, Seen{1, 2}, Seen{-1, 1}, Seen{1, 1}));
}

TEST_F(SamplingTest, ANegativeClassTakesTheNullClassesPlace) {
  const auto start = Sample({.classes = {1}, .seeds = {3}, .steps = 2});
  backend_->velocity = [](int32_t, std::span<const float> x, float, int64_t class_row) {
    return std::vector<float>(x.size(), static_cast<float>(class_row));
  };
  SampleRequest request{.classes = {1, 0, -1}, .seeds = {3, 3, 3}, .steps = 2};
  request.guidance = 3.0;
  request.negative_class = 0;
  const auto images = Sample(request);
  EXPECT_NEAR(Displacement(images[0], start[0]), -(0 + 3 * (1 - 0)), 1e-4);
  EXPECT_NEAR(Displacement(images[1], start[0]), 0, 1e-4) << "away from its own class is its own class";
  EXPECT_NEAR(Displacement(images[2], start[0]), -(0 + 3 * (2 - 0)), 1e-4) << "the null class is row 2";
}

TEST_F(SamplingTest, AGivenImageIsNoisedAndSamplingBeginsThere) {
  const auto noise = Sample({.classes = {-1, -1}, .seeds = {3}, .steps = 1});
  std::vector<float> times;
  backend_->velocity = [&](int32_t, std::span<const float> x, float t, int64_t) {
    times.push_back(t);
    return std::vector<float>(x.size(), 0);
  };
  SampleRequest request{.classes = {-1, -1}, .seeds = {3}, .steps = 2};
  const auto picture = std::make_shared<const std::vector<float>>(std::vector<float>{0.1f, -0.2f, 0.3f, -0.4f});
  request.init_images = {{.pixels = picture}};
  request.strength = 0.25;
  const auto images = Sample(request);
  for (size_t i = 0; i < images.size(); ++i) {
    for (size_t p = 0; p < images[i].size(); ++p) {
      EXPECT_FLOAT_EQ(images[i][p], 0.75f * (*picture)[p] + 0.25f * noise[i][p]);
    }
  }
  EXPECT_THAT(times, ::testing::ElementsAre(0.25f, 0.25f, 0.125f, 0.125f));
  times.clear();
  request.strength.reset();
  request.steps = 0;
  request.times = {0.5, 0.1, 0};
  Sample(request);
  EXPECT_THAT(times, ::testing::ElementsAre(0.5f, 0.5f, 0.1f, 0.1f));
}

TEST_F(SamplingTest, AnImageKeepsItsOwnHistoryAmongOthers) {
  UseGaussianFlow(backend_.get());
  SampleRequest together{.classes = {-1, 1, 0}, .seeds = {5}, .solver = Solver::kMultistep, .steps = 6};
  const auto images = Sample(together);
  for (size_t i = 0; i < images.size(); ++i) {
    SampleRequest alone = together;
    alone.classes = {together.classes[i]};
    alone.seeds = {5 + i};
    EXPECT_EQ(Sample(alone)[0], images[i]) << i;
  }
}

TEST_F(SamplingTest, HeunRoutesOncePerStepAndUsesTheSameExpertsTwice) {
  Sample({.classes = {-1}, .solver = Solver::kHeun, .steps = 2});
  using Seen = FakeBackend::SeenBatch;
  EXPECT_THAT(backend_->TakeSeen(),
              ::testing::ElementsAre(Seen{-1, 1}, Seen{0, 1}, Seen{0, 1}, Seen{-1, 1}, Seen{0, 1}));
}

// ---- Self-conditioned models: two experts, whose answers depend on the estimate that they are given.

float ConditionedVelocity(int32_t expert, float x, float estimate, float t, bool null_class) {
  return (0.3f + 0.2f * static_cast<float>(expert)) * x + (null_class ? 0.7f : 0.4f) * estimate + 0.1f * t;
}

class SelfConditionedSamplingTest : public SamplingTest {
 protected:
  SelfConditionedSamplingTest() {
    SamplerInfo info = Info();
    info.self_conditioning = true;
    backend_ = std::make_shared<FakeBackend>(info);
    backend_->posterior = [](std::span<const float>, float, int64_t) { return std::vector<float>{.25f, .75f}; };
    backend_->conditioned_velocity = [](int32_t expert, std::span<const float> x, std::span<const float> estimate,
                                        float t, int64_t class_row) {
      EXPECT_EQ(x.size(), estimate.size());
      std::vector<float> velocity;
      for (size_t p = 0; p < x.size(); ++p) {
        velocity.push_back(ConditionedVelocity(expert, x[p], estimate[p], t, class_row == Info().classes));
      }
      return velocity;
    };
  }

  // One pixel, written down as it is meant.
  static float Expected(const SampleRequest& request, float x) {
    const double guidance = request.guidance.value_or(kDefaultGuidance);
    float estimate = 0;
    float own = 0;  // of the class branch
    const auto velocity = [&](float at, double t) {
      const auto blend = [&](bool null_class) {
        return .25f * ConditionedVelocity(0, at, estimate, static_cast<float>(t), null_class) +
               .75f * ConditionedVelocity(1, at, estimate, static_cast<float>(t), null_class);
      };
      own = blend(request.classes[0] == kNoClass);
      if (request.classes[0] == kNoClass) return own;
      return blend(true) + static_cast<float>(guidance) * (own - blend(true));
    };
    for (const SolverStep& step : TimeGrid(request.solver, request.steps)) {
      const auto span = static_cast<float>(step.to - step.from);
      const float first = velocity(x, step.from);
      if (!step.second_evaluation) {
        estimate = x - static_cast<float>(step.from) * own;
        x += span * first;
        continue;
      }
      const float end = x + span * first;
      const float second = velocity(end, step.to);
      estimate = end - static_cast<float>(step.to) * own;
      x += span * 0.5f * (first + second);
    }
    return x;
  }
};

TEST_F(SelfConditionedSamplingTest, EachStepReadsTheEnsemblesEstimateOfTheStepBefore) {
  ActiveRequest start{.order = {.images = {{-1, 3}}},
                      .model = std::make_shared<ServedVersion>(ServedVersion{.info = backend_->info()})};
  StartImages(&start);
  for (const Solver solver : {Solver::kEuler, Solver::kHeun}) {
    for (const int32_t label : {-1, 1}) {
      for (const double guidance : {1.0, 2.5}) {
        SampleRequest request{.classes = {label},
                              .seeds = {3},
                              .routing = {.mode = RoutingMode::kFull},
                              .solver = solver,
                              .steps = 5,
                              .guidance = guidance};
        const std::vector<float> image = Sample(request)[0];
        for (size_t p = 0; p < image.size(); ++p) {
          EXPECT_NEAR(image[p], Expected(request, start.images.front().state.x[p]), 1e-4)
              << "solver " << static_cast<int>(solver) << ", class " << label << ", guidance " << guidance;
        }
      }
    }
  }
}

TEST_F(SelfConditionedSamplingTest, AnImagesEstimateIsItsOwnWhateverItsNeighbours) {
  SampleRequest many{.classes = {-1, 1, 0}, .seeds = {3}, .routing = {.mode = RoutingMode::kFull}, .steps = 5};
  const auto together = Sample(many);
  for (size_t i = 0; i < many.classes.size(); ++i) {
    SampleRequest alone = many;
    alone.classes = {many.classes[i]};
    alone.seeds = {3 + i};
    EXPECT_EQ(Sample(alone)[0], together[i]) << "image " << i;
  }
}

}  // namespace
}  // namespace atl::router
