#include "router/policy/request.h"

#include <functional>
#include <limits>

#include "common/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::router {
namespace {

using ::testing::HasSubstr;

const SamplerInfo kDigits{
    .model = "digits", .version = "v1", .experts = 4, .classes = 10, .channels = 1, .height = 8, .width = 8};

SampleRequest Asking(std::vector<int32_t> classes) {
  return {.classes = std::move(classes)};
}

TEST(ResolveRequestTest, DefaultsAreFilledIn) {
  const auto order = ResolveRequest(Asking({3, -1}), kDigits, {});
  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_EQ(order->steps, 30);
  EXPECT_EQ(order->guidance, 2.0);
  EXPECT_EQ(order->routing.top_k, 1);
  EXPECT_EQ(order->images, (std::vector<ImageOrder>{{3, 0}, {-1, 1}}));
  EXPECT_EQ(order->start, 1.0);
  EXPECT_EQ(order->Grid().size(), 30u);
  for (const double t : {1.0, 0.5, 0.0}) {
    EXPECT_TRUE(order->guided(order->images[0], t));
    EXPECT_FALSE(order->guided(order->images[1], t));
  }
}

TEST(ResolveRequestTest, TheVersionsDefaultsStandWhereARequestIsOpen) {
  SamplerInfo info = kDigits;
  info.defaults = {.routing = {.mode = RoutingMode::kNucleus, .nucleus_p = 0.9, .temperature = 0.5},
                   .solver = Solver::kMultistep,
                   .steps = 12,
                   .guidance = 3.5};
  SampleRequest open = Asking({3});
  open.default_routing = true;
  open.default_solver = true;
  auto order = ResolveRequest(open, info, {});
  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_EQ(order->routing, info.defaults.routing);
  EXPECT_EQ(order->solver, Solver::kMultistep);
  EXPECT_EQ(order->steps, 12);
  EXPECT_EQ(order->guidance, 3.5);
  open.routing.temperature = 2;
  EXPECT_EQ(ResolveRequest(open, info, {})->routing,
            (RoutingRule{.mode = RoutingMode::kNucleus, .nucleus_p = 0.9, .temperature = 2}));

  SampleRequest said = Asking({3});
  said.routing = {.mode = RoutingMode::kFull};
  said.solver = Solver::kHeun;
  said.steps = 5;
  said.guidance = 1.0;
  order = ResolveRequest(said, info, {});
  EXPECT_EQ(order->routing.mode, RoutingMode::kFull);
  EXPECT_EQ(order->solver, Solver::kHeun);
  EXPECT_EQ(order->steps, 5);
  EXPECT_EQ(order->guidance, 1.0);

  info.defaults.steps = 100'000;
  EXPECT_EQ(ResolveRequest(open, info, {})->steps, 250) << "never beyond the router's limit";
}

TEST(ResolveRequestTest, OneSeedCountsUpAndSeveralStandForThemselves) {
  SampleRequest request = Asking({1, 1, 1});
  request.seeds = {7};
  EXPECT_EQ(ResolveRequest(request, kDigits, {})->images.back().seed, 9u);
  request.seeds = {5, 5, 4};
  EXPECT_EQ(ResolveRequest(request, kDigits, {})->images.back().seed, 4u);
}

TEST(ResolveRequestTest, GuidanceOfOneNeedsNoNullBranch) {
  SampleRequest request = Asking({1});
  request.guidance = 1.0;
  const auto order = ResolveRequest(request, kDigits, {});
  EXPECT_FALSE(order->guided(order->images[0], 0.5));
}

TEST(ResolveRequestTest, GuidanceActsInItsIntervalEndsIncluded) {
  SampleRequest request = Asking({1});
  request.guidance_from = 0.25;
  request.guidance_to = 0.75;
  const auto order = ResolveRequest(request, kDigits, {});
  for (const auto& [t, guided] : {std::pair{1.0, false}, {0.76, false}, {0.75, true}, {0.25, true}, {0.2, false}}) {
    EXPECT_EQ(order->guided(order->images[0], t), guided) << t;
  }
}

TEST(ResolveRequestTest, ANegativeClassGuidesAllButItsOwnImages) {
  SampleRequest request = Asking({1, 3, -1});
  request.negative_class = 3;
  const auto order = ResolveRequest(request, kDigits, {});
  EXPECT_TRUE(order->guided(order->images[0], 0.5));
  EXPECT_FALSE(order->guided(order->images[1], 0.5));
  EXPECT_TRUE(order->guided(order->images[2], 0.5));
}

TEST(ResolveRequestTest, GivenTimesAreTheGrid) {
  SampleRequest request = Asking({1});
  request.times = {1, 0.4, 0};
  const auto order = ResolveRequest(request, kDigits, {});
  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_EQ(order->steps, 2);
  EXPECT_EQ(order->Grid(), (std::vector<SolverStep>{{1, 0.4, false}, {0.4, 0, false}}));
  request.steps = 2;
  EXPECT_TRUE(ResolveRequest(request, kDigits, {}).ok());
}

InitImage Picture(int32_t side) {
  return {.pixels = std::make_shared<const std::vector<float>>(side * side, 0.5f),
          .channels = 1,
          .height = side,
          .width = side};
}

TEST(ResolveRequestTest, AnImageToStartFromIsNoisedAsFarAsAsked) {
  SampleRequest request = Asking({1, 2});
  request.init_images = {Picture(8)};
  request.steps = 3;
  auto order = ResolveRequest(request, kDigits, {});
  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_EQ(order->start, 0.5);
  EXPECT_EQ(order->Grid().size(), 3u);
  EXPECT_EQ(order->Grid().front().from, 0.5);
  EXPECT_EQ(order->images[1].init, request.init_images[0].pixels) << "one for all";
  request.init_images.push_back(Picture(8));
  request.strength = 0.25;
  order = ResolveRequest(request, kDigits, {});
  EXPECT_EQ(order->start, 0.25);
  EXPECT_EQ(order->images[1].init, request.init_images[1].pixels);
  request.strength.reset();
  request.steps = 0;
  request.times = {0.7, 0.2, 0};
  EXPECT_EQ(ResolveRequest(request, kDigits, {})->start, 0.7);
}

TEST(ResolveRequestTest, LatentsAreGivenAsNumbersAlone) {
  SamplerInfo latents = kDigits;
  latents.latent = true;
  const absl::Status status = ResolveRequest(Asking({1}), latents, {}).status();
  EXPECT_EQ(ErrorField(status), "format");
  EXPECT_EQ(ErrorReason(status), "LATENT_MODEL");
  EXPECT_THAT(std::string(status.message()), HasSubstr("latents of [1, 8, 8], which are no pixels"));
  SampleRequest raw = Asking({1});
  raw.format = ImageFormat::kRaw;
  EXPECT_TRUE(ResolveRequest(raw, latents, {}).ok());
}

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

void Noise(SampleRequest& request, double strength) {
  request.init_images = {Picture(8)};
  request.strength = strength;
}

struct BadCase {
  std::string name;
  std::function<void(SampleRequest&)> spoil;
  std::string field;
  std::string reason;
  std::string message;
};

class BadRequestTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadRequestTest, IsRefusedWithFieldRangeAndWhatWasFound) {
  SampleRequest request = Asking({1, 2});
  GetParam().spoil(request);
  const absl::Status status = ResolveRequest(request, kDigits, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorField(status), GetParam().field);
  EXPECT_EQ(ErrorReason(status), GetParam().reason);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Requests, BadRequestTest,
    ::testing::Values(
        BadCase{"NoImages", [](auto& r) { r.classes.clear(); }, "classes", "NO_IMAGES", "found none"},
        BadCase{"TooManyImages", [](auto& r) { r.classes.assign(1025, 0); }, "classes", "TOO_MANY_IMAGES",
                "at most 1024 images in one request, found 1025"},
        BadCase{"UnknownClass", [](auto& r) { r.classes[1] = 10; }, "classes[1]", "UNKNOWN_CLASS",
                "0 to 9, or -1 for none, found 10"},
        BadCase{"NegativeClass", [](auto& r) { r.classes[0] = -2; }, "classes[0]", "UNKNOWN_CLASS", "found -2"},
        BadCase{"SeedCount",
                [](auto& r) {
                  r.seeds = {1, 2, 3};
                },
                "seeds", "SEED_COUNT_MISMATCH", "found 3"},
        BadCase{"HundredThousandSteps", [](auto& r) { r.steps = 100'000; }, "steps", "VALUE_OUT_OF_RANGE",
                "found 100000"},
        BadCase{"ThousandSteps", [](auto& r) { r.steps = 1000; }, "steps", "VALUE_OUT_OF_RANGE",
                "expected 1 to 250, or none for 30, found 1000"},
        BadCase{"PriorityTen", [](auto& r) { r.priority = 10; }, "priority", "VALUE_OUT_OF_RANGE", "0 to 9"},
        BadCase{"PreviewsEveryMinusOneSteps", [](auto& r) { r.preview_every = -1; }, "preview_every",
                "VALUE_OUT_OF_RANGE", "found -1"},
        BadCase{"NegativeSteps", [](auto& r) { r.steps = -1; }, "steps", "VALUE_OUT_OF_RANGE", "found -1"},
        BadCase{"TopKAboveExperts", [](auto& r) { r.routing.top_k = 5; }, "top_k", "VALUE_OUT_OF_RANGE",
                "expected 1 to 4"},
        BadCase{"ThresholdZero", [](auto& r) { r.routing = {.mode = RoutingMode::kThreshold, .threshold = 0}; },
                "threshold", "VALUE_OUT_OF_RANGE", "found 0"},
        BadCase{"ThresholdNaN",
                [](auto& r) {
                  r.routing = {.mode = RoutingMode::kThreshold, .threshold = std::numeric_limits<double>::quiet_NaN()};
                },
                "threshold", "VALUE_OUT_OF_RANGE", "found nan"},
        BadCase{"OracleExpert", [](auto& r) { r.routing = {.mode = RoutingMode::kOracle, .oracle_expert = 4}; },
                "oracle_expert", "UNKNOWN_EXPERT", "expected 0 to 3"},
        BadCase{"GuidanceNaN", [](auto& r) { r.guidance = std::numeric_limits<double>::quiet_NaN(); }, "guidance",
                "VALUE_OUT_OF_RANGE", "found nan"},
        BadCase{"GuidanceInfinite", [](auto& r) { r.guidance = std::numeric_limits<double>::infinity(); }, "guidance",
                "VALUE_OUT_OF_RANGE", "found inf"},
        BadCase{"GuidanceNegative", [](auto& r) { r.guidance = -1; }, "guidance", "VALUE_OUT_OF_RANGE", "found -1"},
        BadCase{"GuidanceFromNaN", [](auto& r) { r.guidance_from = kNaN; }, "guidance_from", "VALUE_OUT_OF_RANGE",
                "found nan"},
        BadCase{"GuidanceFromAboveOne", [](auto& r) { r.guidance_from = 1.5; }, "guidance_from", "VALUE_OUT_OF_RANGE",
                "found 1.5"},
        BadCase{"GuidanceToNaN", [](auto& r) { r.guidance_to = kNaN; }, "guidance_to", "VALUE_OUT_OF_RANGE",
                "found nan"},
        BadCase{"GuidanceIntervalUpsideDown",
                [](auto& r) {
                  r.guidance_from = 0.5;
                  r.guidance_to = 0.25;
                },
                "guidance_to", "VALUE_OUT_OF_RANGE", "expected 0.5 to 1, from guidance_from on, found 0.25"},
        BadCase{"UnknownNegativeClass", [](auto& r) { r.negative_class = 10; }, "negative_class", "UNKNOWN_CLASS",
                "found 10"},
        BadCase{"NucleusNone", [](auto& r) { r.routing = {.mode = RoutingMode::kNucleus}; }, "nucleus_p",
                "VALUE_OUT_OF_RANGE", "found 0"},
        BadCase{"NucleusNaN", [](auto& r) { r.routing = {.mode = RoutingMode::kNucleus, .nucleus_p = kNaN}; },
                "nucleus_p", "VALUE_OUT_OF_RANGE", "found nan"},
        BadCase{"TemperatureNegative", [](auto& r) { r.routing.temperature = -1; }, "temperature",
                "VALUE_OUT_OF_RANGE", "expected 0.01 to 100, or none for 1, found -1"},
        BadCase{"TemperatureNaN", [](auto& r) { r.routing.temperature = kNaN; }, "temperature",
                "VALUE_OUT_OF_RANGE", "found nan"},
        BadCase{"OneTime", [](auto& r) { r.times = {1}; }, "times", "TIMES_COUNT", "expected 2 to 251 times"},
        BadCase{"HundredThousandTimes", [](auto& r) { r.times.assign(100'001, 0.5); }, "times", "TIMES_COUNT",
                "found 100001"},
        BadCase{"TimesAndOtherSteps",
                [](auto& r) {
                  r.times = {1, 0.5, 0};
                  r.steps = 3;
                },
                "steps", "STEPS_MISMATCH", "expected none or 2"},
        BadCase{"TimesAboveOne",
                [](auto& r) {
                  r.times = {1.1, 0};
                },
                "times[0]", "VALUE_OUT_OF_RANGE", "found 1.1"},
        BadCase{"TimesRise",
                [](auto& r) {
                  r.times = {1, 0.4, 0.5, 0};
                },
                "times[2]", "TIMES_NOT_FALLING", "less than the 0.4 before it, found 0.5"},
        BadCase{"TimesStand",
                [](auto& r) {
                  r.times = {1, 0.5, 0.5, 0};
                },
                "times[2]", "TIMES_NOT_FALLING", "found 0.5"},
        BadCase{"TimesNaN",
                [](auto& r) {
                  r.times = {1, kNaN, 0};
                },
                "times[1]", "TIMES_NOT_FALLING", "found nan"},
        BadCase{"TimesStopBeforeData",
                [](auto& r) {
                  r.times = {1, 0.5};
                },
                "times[1]", "VALUE_OUT_OF_RANGE", "expected 0, the data, as the last, found 0.5"},
        BadCase{"TimesPassData",
                [](auto& r) {
                  r.times = {1, 0.5, -0.1};
                },
                "times[2]", "VALUE_OUT_OF_RANGE", "found -0.1"},
        BadCase{"InitImageCount", [](auto& r) { r.init_images.assign(3, Picture(8)); }, "init_images",
                "INIT_IMAGE_COUNT", "expected none, 1 or 2"},
        BadCase{"InitImageShape",
                [](auto& r) {
                  r.init_images = {Picture(8), Picture(9)};
                },
                "init_images[1]", "INIT_IMAGE_SHAPE", "expected [1, 8, 8], the shape that model 'digits' draws, found "
                                                      "[1, 9, 9]"},
        BadCase{"InitImageOfRawValues",
                [](auto& r) {
                  r.init_images = {Picture(9)};
                  r.init_images[0].channels = 0;
                },
                "init_images[0]", "INIT_IMAGE_SHAPE", "found 81 values"},
        BadCase{"StrengthAlone", [](auto& r) { r.strength = 0.5; }, "strength", "STRENGTH_WITHOUT_IMAGE",
                "expected init_images beside a strength of 0.5, found none"},
        BadCase{"StrengthZero", [](auto& r) { Noise(r, 0); }, "strength", "VALUE_OUT_OF_RANGE", "found 0"},
        BadCase{"StrengthTiny", [](auto& r) { Noise(r, 1e-9); }, "strength", "VALUE_OUT_OF_RANGE",
                "expected 0.0003 (for 30 steps) to 1, found 1e-09"},
        BadCase{"StrengthAboveOne", [](auto& r) { Noise(r, 1.01); }, "strength", "VALUE_OUT_OF_RANGE",
                "found 1.01"},
        BadCase{"StrengthNaN", [](auto& r) { Noise(r, kNaN); }, "strength", "VALUE_OUT_OF_RANGE", "found nan"},
        BadCase{"StrengthAndTimes",
                [](auto& r) {
                  Noise(r, 0.5);
                  r.times = {0.5, 0};
                },
                "strength", "STRENGTH_MISMATCH", "expected none with times, whose first one, 0.5, is the strength; found 0.5"}),
    [](const auto& info) { return info.param.name; });

TEST(ResolveRequestTest, AnUnconditionalModelKnowsNoClass) {
  SamplerInfo info = kDigits;
  info.classes = 0;
  EXPECT_TRUE(ResolveRequest(Asking({-1}), info, {}).ok());
  EXPECT_THAT(std::string(ResolveRequest(Asking({0}), info, {}).status().message()),
              HasSubstr("the model has no classes"));
}

}  // namespace
}  // namespace atl::router
