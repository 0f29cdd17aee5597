#include "inference/stored_probe.h"

#include <cmath>
#include <functional>

#include "common/base/errors.h"
#include "common/storage/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

storage::ModelIndex Index() {
  return {
      .name = "m", .version = "v", .channels = 1, .height = 1, .width = 2, .classes = {"a", "b", "c"}, .experts = 2};
}

// A probe of two rows; `spoil` may change it before it is written.
class Probe {
 public:
  std::vector<float> x = {1, 2, 3, 4};
  std::vector<float> t = {0.25f, 0.75f};
  std::vector<int64_t> classes = {0, 3};
  std::vector<float> estimate = {9, 8, 7, 6};
  std::vector<float> posterior = {0.25f, 0.75f, 0.5f, 0.5f};
  std::vector<float> velocity = {-1, -2, -3, -4};
  std::vector<int64_t> shape = {2, 1, 1, 2};
  std::string without;

  std::string Bytes() const {
    std::vector<storage::TensorView> tensors = {{"x", "F32", shape, BytesOf(x)},
                                                {"t", "F32", {static_cast<int64_t>(t.size())}, BytesOf(t)},
                                                {"class", "I64", {2}, BytesOf(classes)},
                                                {"estimate", "F32", shape, BytesOf(estimate)},
                                                {"posterior", "F32", {2, 2}, BytesOf(posterior)},
                                                {"velocity.1", "F32", shape, BytesOf(velocity)}};
    std::erase_if(tensors, [&](const auto& tensor) { return tensor.name == without; });
    return *storage::SerializeSafetensors(std::move(tensors), {});
  }

 private:
  template <typename T>
  static std::string_view BytesOf(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
  }
};

TEST(StoredProbeTest, HasThePointsAndTheAnswersOfTheNetworkThatIsAsked) {
  const auto router = ParseStoredProbe(Probe().Bytes(), Index(), kRouterNetwork, "p");
  ASSERT_TRUE(router.ok()) << router.status();
  EXPECT_EQ(router->rows.count, 2);
  EXPECT_THAT(router->rows.x, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(router->rows.t, ElementsAre(0.25f, 0.75f));
  EXPECT_THAT(router->rows.classes, ElementsAre(0, 3));
  EXPECT_THAT(router->answers, ElementsAre(0.25f, 0.75f, 0.5f, 0.5f));
  storage::ModelIndex index = Index();
  EXPECT_TRUE(ParseStoredProbe(Probe().Bytes(), index, 1, "p")->rows.estimate.empty());
  index.self_conditioning = true;
  const auto expert = ParseStoredProbe(Probe().Bytes(), index, 1, "p");
  EXPECT_THAT(expert->answers, ElementsAre(-1, -2, -3, -4));
  EXPECT_THAT(expert->rows.estimate, ElementsAre(9, 8, 7, 6));
}

TEST(StoredProbeTest, WhatDoesNotFitTheVersionIsNamed) {
  struct Case {
    std::function<void(Probe&)> spoil;
    std::string found;
  };
  for (const Case& c : std::vector<Case>{{[](Probe& p) { p.without = "t"; }, "expected a tensor 't'"},
                                         {[](Probe& p) { p.without = "x"; }, "expected a tensor 'x'"},
                                         {[](Probe& p) { p.without = "velocity.1"; }, "expected a tensor 'velocity.1'"},
                                         {[](Probe& p) {
                                            p.shape = {2, 1, 2, 1};
                                          },
                                          "x: expected F32 [2, 1, 1, 2], found F32 [2, 1, 2, 1]"},
                                         {[](Probe& p) { p.t = {0.5f}; }, "x: expected F32 [1, 1, 1, 2]"},
                                         {[](Probe& p) { p.classes[1] = 4; }, "class: expected 0 to 3"}}) {
    Probe probe;
    c.spoil(probe);
    const absl::Status status = ParseStoredProbe(probe.Bytes(), Index(), 1, "p").status();
    EXPECT_EQ(ErrorReason(status), "PROBE_MALFORMED") << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.found));
  }
  EXPECT_EQ(ParseStoredProbe("no file", Index(), 1, "p").status().code(), absl::StatusCode::kDataLoss);
}

TEST(StoredProbeTest, AnswersMayDifferByRoundingAlone) {
  const StoredProbe probe{.answers = {3, 4}};  // of norm 5
  const auto reason = [&](std::vector<float> found) { return ErrorReason(CheckAnswers(probe, found, 1e-3, "n")); };
  EXPECT_EQ(reason({3, 4}), "");
  EXPECT_EQ(reason({3, 4.0049f}), "");
  EXPECT_EQ(reason({3, 4.0051f}), "PROBE_MISMATCH");
  EXPECT_EQ(reason({4, 3}), "PROBE_MISMATCH");
  EXPECT_EQ(reason({3, std::nanf("")}), "PROBE_MISMATCH");
  EXPECT_EQ(reason({3}), "PROBE_MISMATCH");
  const StoredProbe zeros{.answers = {0, 0}};
  EXPECT_TRUE(CheckAnswers(zeros, std::vector<float>{1e-7f, 0}, 1e-3, "n").ok());
  EXPECT_FALSE(CheckAnswers(zeros, std::vector<float>{1e-4f, 0}, 1e-3, "n").ok());
}

}  // namespace
}  // namespace atl::router
