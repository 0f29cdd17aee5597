#include "router/engine/testing/inline_lane.h"

#include "common/base/errors.h"
#include "common/base/fake_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/engine/served_version.h"
#include "router/engine/testing/fake_backend.h"

namespace atl::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class InlineLaneTest : public ::testing::Test {
 protected:
  absl::StatusOr<EvaluationAnswer> Start(Evaluation evaluation) {
    std::vector<absl::StatusOr<EvaluationAnswer>> answers;
    lane_.Start(std::make_shared<Evaluation>(std::move(evaluation)),
                [&](absl::StatusOr<EvaluationAnswer> answer) { answers.push_back(std::move(answer)); });
    EXPECT_EQ(answers.size(), 1);
    return answers.front();
  }
  // Two rows of two pixels.
  static Rows TwoRows() { return {.count = 2, .x = {1, 2, 3, 4}, .t = {1, 0.5f}, .classes = {0, 1}}; }

  const ServedVersion version_{
      .info = {.model = "m", .version = "v", .experts = 2, .classes = 2, .channels = 1, .height = 1, .width = 2},
      .digest = "d"};
  FakeClock clock_;
  std::shared_ptr<FakeBackend> backend_ = std::make_shared<FakeBackend>(version_.info);
  InlineLane lane_{{.name = "here", .fingerprint = "f"}, backend_, "d", &clock_};
};

TEST_F(InlineLaneTest, HostsEveryNetworkOfItsVersion) {
  std::vector<NetworkId> ids;
  for (const HostedNetwork& network : *lane_.hosted()) ids.push_back(network.id);
  EXPECT_THAT(ids, ElementsAre(version_.network(kRouterNetwork), version_.network(0), version_.network(1)));
}

TEST_F(InlineLaneTest, BothBranchesAreAnsweredOneAfterTheOther) {
  backend_->velocity = [](int32_t expert, std::span<const float> x, float t, int64_t class_row) {
    const float offset = 100 * static_cast<float>(class_row) + 10 * static_cast<float>(expert) + t;
    return std::vector<float>{x[0] + offset, x[1] + offset};
  };
  Rows rows = TwoRows();
  const auto own = Start({.network = version_.network(1), .rows = rows});
  ASSERT_TRUE(own.ok());
  EXPECT_THAT(own->values, ElementsAre(12, 13, 113.5f, 114.5f));
  EXPECT_EQ(own->fingerprint, "f");
  rows.null_classes = {2, 2};
  const auto both = Start({.network = version_.network(1), .rows = rows});
  ASSERT_TRUE(both.ok());
  EXPECT_THAT(both->values, ElementsAre(12, 13, 113.5f, 114.5f, 212, 213, 213.5f, 214.5f));
  EXPECT_THAT(backend_->TakeSeen(), ElementsAre(FakeBackend::SeenBatch{1, 2}, FakeBackend::SeenBatch{1, 4}));
}

TEST_F(InlineLaneTest, BothBranchesReadTheRowsEstimate) {
  backend_->conditioned_velocity = [](int32_t, std::span<const float>, std::span<const float> estimate, float,
                                      int64_t) { return std::vector<float>(estimate.begin(), estimate.end()); };
  Rows rows = TwoRows();
  rows.estimate = {5, 6, 7, 8};
  rows.null_classes = {2, 2};
  EXPECT_THAT(Start({.network = version_.network(0), .rows = rows})->values, ElementsAre(5, 6, 7, 8, 5, 6, 7, 8));
}

TEST_F(InlineLaneTest, TheRouterNetworkAnswersWithProbabilities) {
  EXPECT_THAT(Start({.network = version_.network(kRouterNetwork), .rows = TwoRows()})->values, ElementsAre(1, 0, 0, 1));
}

TEST_F(InlineLaneTest, WhatItDoesNotHostIsRefusedByName) {
  NetworkId other = version_.network(1);
  other.digest = "another";
  for (const NetworkId& id : {other, version_.network(2)}) {
    const absl::Status status = Start({.network = id, .rows = TwoRows()}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(ErrorReason(status), "NETWORK_NOT_HOSTED");
    EXPECT_THAT(status.message(), HasSubstr(Describe(id)));
  }
}

TEST_F(InlineLaneTest, AnExpertsErrorIsTheAnswer) {
  backend_->expert_status = [](int32_t) { return absl::InternalError("broken"); };
  EXPECT_EQ(Start({.network = version_.network(0), .rows = TwoRows()}).status(), absl::InternalError("broken"));
}

}  // namespace
}  // namespace atl::router
