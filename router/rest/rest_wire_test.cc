#include "router/rest/rest_wire.h"

#include "absl/time/clock.h"
#include "common/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace atl::router {
namespace {

namespace pb = atlpb::sample::v1;
using nlohmann::json;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const SamplerInfo kPets{.model = "pets",
                        .version = "v3",
                        .experts = 4,
                        .classes = 3,
                        .channels = 3,
                        .height = 16,
                        .width = 32,
                        .class_names = {"cat", "dog", "2"}};

absl::StatusOr<pb::SampleRequest> Read(std::string_view body) {
  const absl::StatusOr<ImagesRequest> parsed = ParseImagesRequest(body, 128);
  if (!parsed.ok()) return parsed.status();
  return CompleteRequest(*parsed, kPets, /*fresh_seed=*/77);
}

TEST(RestWireTest, WhatOpenAiToolsSendIsUnderstood) {
  const auto request = Read(R"({"model": "pets", "prompt": "dog", "n": 3, "size": "32x16", "quality": "high",
      "style": "vivid", "user": "u-1", "response_format": "b64_json", "output_format": "png", "background": "auto",
      "moderation": null, "stream": false})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->model(), "pets");
  EXPECT_THAT(request->classes(), ElementsAre(1, 1, 1));
  EXPECT_THAT(request->seeds(), ElementsAre(77));
  EXPECT_EQ(request->format(), pb::SampleRequest::FORMAT_PNG);
  EXPECT_EQ(request->mode(), pb::SampleRequest::MODE_UNSPECIFIED);
}

TEST(RestWireTest, SamplingFieldsAreThoseOfTheSamplingService) {
  const auto request = Read(R"({"prompt": 0, "seed": 18446744073709551615, "mode": "topk", "top_k": 2, "steps": 12,
      "solver": "heun", "guidance": 1.5, "output_format": "raw", "priority": 9, "version": "v3", "reproducible": true,
      "times": [1, 0.5, 0], "init_images": ["AAEC"], "strength": 0.25, "negative_class": 1})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->classes(), ElementsAre(0));
  EXPECT_THAT(request->seeds(), ElementsAre(18446744073709551615u));
  EXPECT_EQ(request->mode(), pb::SampleRequest::MODE_TOP_K);
  EXPECT_EQ(request->top_k(), 2);
  EXPECT_EQ(request->steps(), 12);
  EXPECT_EQ(request->solver(), pb::SampleRequest::SOLVER_HEUN);
  EXPECT_EQ(request->guidance(), 1.5);
  EXPECT_EQ(request->format(), pb::SampleRequest::FORMAT_RAW);
  EXPECT_EQ(request->priority(), 9);
  EXPECT_EQ(request->version(), "v3");
  EXPECT_TRUE(request->reproducible());
  EXPECT_THAT(request->times(), ElementsAre(1, 0.5, 0));
  EXPECT_EQ(request->init_images(0), std::string("\0\1\2", 3));
  EXPECT_EQ(request->strength(), 0.25);
  EXPECT_EQ(request->negative_class(), 1);
}

TEST(RestWireTest, APromptIsAClassByItsNameElseItsNumberOrNone) {
  EXPECT_THAT(Read(R"({"prompt": "cat"})")->classes(), ElementsAre(0));
  EXPECT_THAT(Read(R"({"prompt": "1"})")->classes(), ElementsAre(1));
  EXPECT_THAT(Read(R"({"prompt": "2"})")->classes(), ElementsAre(2));
  EXPECT_THAT(Read(R"({"prompt": "none"})")->classes(), ElementsAre(kNoClass));
}

struct BadBody {
  std::string name;
  std::string body;
  std::string field;
  std::string reason;
};

class BadBodyTest : public ::testing::TestWithParam<BadBody> {};

TEST_P(BadBodyTest, NamesFieldAndReason) {
  const absl::Status status = Read(GetParam().body).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(ErrorReason(status), GetParam().reason) << status;
  EXPECT_EQ(ErrorField(status), GetParam().field);
  // Every error answer is short and is JSON, whatever the request.
  EXPECT_LT(status.message().size(), 500u);
  EXPECT_EQ(json::parse(ErrorBody(status))["error"]["code"], GetParam().reason);
}

INSTANTIATE_TEST_SUITE_P(
    Bodies, BadBodyTest,
    ::testing::Values(
        BadBody{"Empty", "", "", "BODY_MALFORMED"}, BadBody{"NoJson", "prompt=dog", "", "BODY_MALFORMED"},
        BadBody{"Truncated", R"({"prompt": "dog")", "", "BODY_MALFORMED"},
        BadBody{"AList", R"(["dog"])", "", "BODY_MALFORMED"},
        BadBody{"TwicePrompt", R"({"prompt": "dog", "prompt": "cat"})", "", "BODY_MALFORMED"},
        BadBody{"NotUtf8", "{\"prompt\": \"\xff\xfe\"}", "", "BODY_MALFORMED"},
        BadBody{"Nan", R"({"prompt": "dog", "guidance": NaN})", "", "BODY_MALFORMED"},
        BadBody{"Infinity", R"({"prompt": "dog", "guidance": 1e999})", "", "BODY_MALFORMED"},
        BadBody{"Deep", std::string(100'000, '['), "", "BODY_MALFORMED"},
        BadBody{"DeepInside", R"({"prompt": )" + std::string(50'000, '[') + std::string(50'000, ']') + "}", "prompt",
                "WRONG_TYPE"},
        BadBody{"NoPrompt", R"({"n": 1})", "prompt", "PROMPT_REQUIRED"},
        BadBody{"PromptOfAnotherType", R"({"prompt": ["dog"]})", "prompt", "WRONG_TYPE"},
        BadBody{"UnknownClass", R"({"prompt": "horse"})", "prompt", "UNKNOWN_CLASS"},
        BadBody{"ClassNumberTooLarge", R"({"prompt": "3"})", "prompt", "UNKNOWN_CLASS"},
        BadBody{"LongPrompt", R"({"prompt": ")" + std::string(100'000, 'x') + "\"}", "prompt", "UNKNOWN_CLASS"},
        BadBody{"NoImages", R"({"prompt": "dog", "n": 0})", "n", "VALUE_OUT_OF_RANGE"},
        BadBody{"ABillionImages", R"({"prompt": "dog", "n": 1000000000})", "n", "VALUE_OUT_OF_RANGE"},
        BadBody{"HugeN", R"({"prompt": "dog", "n": 18446744073709551615})", "n", "VALUE_OUT_OF_RANGE"},
        BadBody{"HalfAnImage", R"({"prompt": "dog", "n": 1.5})", "n", "VALUE_OUT_OF_RANGE"},
        BadBody{"NIsText", R"({"prompt": "dog", "n": "1"})", "n", "WRONG_TYPE"},
        BadBody{"HugeSteps", R"({"prompt": "dog", "steps": 1000000000000})", "steps", "VALUE_OUT_OF_RANGE"},
        BadBody{"NegativeSeed", R"({"prompt": "dog", "seed": -1})", "seed", "WRONG_TYPE"},
        BadBody{"OtherSize", R"({"prompt": "dog", "size": "1024x1024"})", "size", "SIZE_NOT_AVAILABLE"},
        BadBody{"Url", R"({"prompt": "dog", "response_format": "url"})", "response_format", "UNKNOWN_FORMAT"},
        BadBody{"Jpeg", R"({"prompt": "dog", "output_format": "jpeg"})", "output_format", "UNKNOWN_FORMAT"},
        BadBody{"Transparent", R"({"prompt": "dog", "background": "transparent"})", "background", "VALUE_UNKNOWN"},
        BadBody{"StreamIsText", R"({"prompt": "dog", "stream": "yes"})", "stream", "WRONG_TYPE"},
        BadBody{"PartialImagesWithoutStream", R"({"prompt": "dog", "partial_images": 1})", "partial_images",
                "FIELD_NOT_SUPPORTED"},
        BadBody{"TooManyPartialImages", R"({"prompt": "dog", "stream": true, "partial_images": 4})", "partial_images",
                "VALUE_OUT_OF_RANGE"},
        BadBody{"UnknownMode", R"({"prompt": "dog", "mode": "best"})", "mode", "UNKNOWN_MODE"},
        BadBody{"UnknownSolver", R"({"prompt": "dog", "solver": "rk4"})", "solver", "UNKNOWN_SOLVER"},
        BadBody{"UnknownField", R"({"prompt": "dog", "guidence": 2})", "guidence", "UNKNOWN_FIELD"},
        BadBody{"TimesOfText", R"({"prompt": "dog", "times": [1, "0"]})", "times[1]", "WRONG_TYPE"},
        BadBody{"NoBase64", R"({"prompt": "dog", "init_images": ["*"]})", "init_images[0]", "WRONG_TYPE"},
        BadBody{"TimeoutZero", R"({"prompt": "dog", "timeout": 0})", "timeout", "VALUE_OUT_OF_RANGE"}),
    [](const auto& info) { return info.param.name; });

TEST(RestWireTest, ALargeBodyOfManyObjectsIsReadAtOnce) {
  std::string body = R"({"prompt": "1", "times": [{})";
  for (int i = 0; i < 300'000; ++i) body += ",{}";
  const absl::Time begin = absl::Now();
  EXPECT_EQ(ErrorReason(ParseImagesRequest(body + "]}", 8).status()), "WRONG_TYPE");
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
}

TEST(RestWireTest, PartialImagesAreSpreadOverTheSteps) {
  struct Case {
    std::string fields;
    int32_t every;
  };
  const std::vector<Case> cases = {{R"("steps": 30, "partial_images": 0)", 0},
                                   {R"("steps": 30, "partial_images": 2)", 10},
                                   {R"("steps": 31, "partial_images": 2)", 11},
                                   {R"("steps": 2, "partial_images": 3)", 1},
                                   {R"("times": [1, 0.5, 0.2, 0.1, 0], "partial_images": 1)", 2}};
  for (const auto& [fields, every] : cases) {
    const auto request = Read(R"({"prompt": "dog", "stream": true, )" + fields + "}");
    ASSERT_TRUE(request.ok()) << request.status();
    EXPECT_EQ(request->preview_every(), every) << fields;
  }
}

TEST(RestWireTest, AnAnswerHoldsEveryImageInOrder) {
  SampleReport report{.version = "v3"};
  report.routing.chosen = {5, 7, 0, 0};
  report.routing.image_steps = 12;
  report.routing.switches = 2;
  report.routing.close_calls = 1;
  const std::string body = ImagesBody(absl::FromUnixSeconds(1'700'000'000), kPets, ImageFormat::kPng,
                                      {{.index = 1, .order = {.class_label = 2, .seed = 8}, .data = "\xff\x00\x01"},
                                       {.index = 0, .order = {.class_label = kNoClass, .seed = 7}, .data = "ab"}},
                                      report);
  const json parsed = json::parse(body);
  EXPECT_EQ(parsed["created"], 1'700'000'000);
  EXPECT_EQ(parsed["size"], "32x16");
  ASSERT_EQ(parsed["data"].size(), 2u);
  EXPECT_EQ(parsed["data"][0]["b64_json"], "YWI=");
  EXPECT_EQ(parsed["data"][0]["seed"], 7);
  EXPECT_FALSE(parsed["data"][0].contains("class"));
  EXPECT_EQ(parsed["data"][1]["class"], 2);
  EXPECT_EQ(parsed["routing"]["chosen"], json({5, 7, 0, 0}));
  EXPECT_EQ(parsed["routing"]["switches"], 2);
  EXPECT_EQ(parsed["routing"]["close_calls"], 1);
}

TEST(RestWireTest, ErrorsNameTheFieldOfTheBodyAndTheirKind) {
  const json bad = json::parse(ErrorBody(FieldError("classes[0]", "UNKNOWN_CLASS", "expected …, found \xff")))["error"];
  EXPECT_EQ(bad["param"], "prompt");
  EXPECT_EQ(bad["type"], "invalid_request_error");
  EXPECT_EQ(bad["code"], "UNKNOWN_CLASS");
  const json full = json::parse(ErrorBody(absl::ResourceExhaustedError("full")))["error"];
  EXPECT_EQ(full["type"], "rate_limit_error");
  EXPECT_EQ(full["code"], "RESOURCE_EXHAUSTED");
  EXPECT_TRUE(full["param"].is_null());
  EXPECT_EQ(json::parse(ErrorBody(absl::InternalError("x")))["error"]["type"], "server_error");
  EXPECT_EQ(HttpCode(absl::StatusCode::kNotFound), 404);
  EXPECT_EQ(HttpCode(absl::StatusCode::kResourceExhausted), 429);
  EXPECT_EQ(HttpCode(absl::StatusCode::kUnavailable), 503);
  EXPECT_EQ(HttpCode(absl::StatusCode::kDeadlineExceeded), 504);
}

TEST(RestWireTest, ModelsAreListedAsOpenAiListsThem) {
  const std::vector<SamplerInfo> served = {kPets};
  const json models = json::parse(ModelsBody(served));
  EXPECT_EQ(models["object"], "list");
  ASSERT_EQ(models["data"].size(), 1u);
  EXPECT_EQ(models["data"][0]["id"], "pets");
  EXPECT_EQ(models["data"][0]["object"], "model");
  EXPECT_EQ(models["data"][0]["class_names"][1], "dog");
  EXPECT_EQ(json::parse(ModelBody(kPets)), models["data"][0]);
}

}  // namespace
}  // namespace atl::router
