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
  EXPECT_TRUE(order->guided(order->images[0]));
  EXPECT_FALSE(order->guided(order->images[1]));
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
  EXPECT_FALSE(order->guided(order->images[0]));
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
        BadCase{"ThousandSteps", [](auto& r) { r.steps = 1000; }, "steps", "STEPS_OUT_OF_RANGE",
                "expected 1 to 250, or 0 for 30, found 1000"},
        BadCase{"NegativeSteps", [](auto& r) { r.steps = -1; }, "steps", "STEPS_OUT_OF_RANGE", "found -1"},
        BadCase{"TopKAboveExperts", [](auto& r) { r.routing.top_k = 5; }, "top_k", "TOP_K_OUT_OF_RANGE",
                "expected 1 to 4"},
        BadCase{"ThresholdZero", [](auto& r) { r.routing = {.mode = RoutingMode::kThreshold, .threshold = 0}; },
                "threshold", "THRESHOLD_OUT_OF_RANGE", "found 0"},
        BadCase{"ThresholdNaN",
                [](auto& r) {
                  r.routing = {.mode = RoutingMode::kThreshold, .threshold = std::numeric_limits<double>::quiet_NaN()};
                },
                "threshold", "THRESHOLD_OUT_OF_RANGE", "found nan"},
        BadCase{"OracleExpert", [](auto& r) { r.routing = {.mode = RoutingMode::kOracle, .oracle_expert = 4}; },
                "oracle_expert", "UNKNOWN_EXPERT", "expected 0 to 3"},
        BadCase{"GuidanceNaN", [](auto& r) { r.guidance = std::numeric_limits<double>::quiet_NaN(); }, "guidance",
                "GUIDANCE_OUT_OF_RANGE", "found nan"},
        BadCase{"GuidanceInfinite", [](auto& r) { r.guidance = std::numeric_limits<double>::infinity(); }, "guidance",
                "GUIDANCE_OUT_OF_RANGE", "found inf"},
        BadCase{"GuidanceNegative", [](auto& r) { r.guidance = -1; }, "guidance", "GUIDANCE_OUT_OF_RANGE", "found -1"}),
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
