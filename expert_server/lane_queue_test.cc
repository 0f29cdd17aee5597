#include "expert_server/lane_queue.h"

#include <map>
#include <string>

#include "common/base/errors.h"
#include "common/base/fake_clock.h"
#include "expert_server/expert_wire.h"
#include "expert_server/fake_lane.h"
#include "gtest/gtest.h"

namespace atl::worker {
namespace {

using router::Evaluation;
using router::HostedNetwork;

NetworkId Expert(int32_t expert, const std::string& digest = "d1") {
  return {.model = "m", .version = "v1", .digest = digest, .expert = expert};
}

std::shared_ptr<FakeLane> Lane(const std::string& name, std::vector<HostedNetwork> hosted) {
  return std::make_shared<FakeLane>(router::LaneInfo{.name = name, .fingerprint = "f"}, std::move(hosted));
}

class LaneQueueTest : public testing::Test {
 protected:
  void Submit(LaneQueue* queue, int64_t id, const NetworkId& network,
              absl::Duration deadline = absl::InfiniteDuration()) {
    auto evaluation = std::make_shared<Evaluation>();
    evaluation->id = id;
    evaluation->network = network;
    evaluation->deadline = deadline;
    evaluation->rows.x = {static_cast<float>(id)};
    queue->Submit(std::move(evaluation), [this, id](absl::StatusOr<router::EvaluationAnswer> answer) {
      EXPECT_FALSE(answers_.contains(id)) << "answered twice";
      answers_[id] = answer.ok() ? "value " + std::to_string(static_cast<int>(answer->values[0]))
                                 : std::string(absl::StatusCodeToString(answer.status().code())) + " " +
                                       ErrorReason(answer.status());
    });
  }
  std::string Answer(int64_t id) const { return answers_.contains(id) ? answers_.at(id) : "none"; }

  FakeClock clock_;
  std::map<int64_t, std::string> answers_;
};

TEST_F(LaneQueueTest, WhoeverCameFirstRunsOnTheLaneThatIsFreeFirst) {
  const auto a = Lane("a", {{.id = Expert(0)}});
  const auto b = Lane("b", {{.id = Expert(0)}});
  LaneQueue queue({a, b}, &clock_);
  for (int64_t id = 1; id <= 4; ++id) Submit(&queue, id, Expert(0));
  EXPECT_EQ(a->oldest()->id, 1);
  EXPECT_EQ(b->oldest()->id, 2);
  EXPECT_EQ(queue.waiting(), 2u);
  b->Echo();
  EXPECT_EQ(b->oldest()->id, 3);
  b->Echo();
  a->Echo();
  b->Echo();
  EXPECT_EQ(answers_, (std::map<int64_t, std::string>{{1, "value 1"}, {2, "value 2"}, {3, "value 3"}, {4, "value 4"}}));
}

TEST_F(LaneQueueTest, ABatchWhoseLanesAreBusyLetsOthersPass) {
  const auto a = Lane("a", {{.id = Expert(0)}});
  const auto b = Lane("b", {{.id = Expert(1)}});
  LaneQueue queue({a, b}, &clock_);
  Submit(&queue, 1, Expert(0));
  Submit(&queue, 2, Expert(0));
  Submit(&queue, 3, Expert(1));
  EXPECT_EQ(b->oldest()->id, 3);
  b->Echo();
  a->Echo();
  EXPECT_EQ(a->oldest()->id, 2);
  a->Echo();
}

TEST_F(LaneQueueTest, ALaneThatHasTheNetworkInMemoryGoesFirst) {
  const auto a = Lane("a", {{.id = Expert(0), .resident = false}});
  const auto b = Lane("b", {{.id = Expert(0), .resident = true}});
  LaneQueue queue({a, b}, &clock_);
  Submit(&queue, 1, Expert(0));
  EXPECT_EQ(a->held(), 0u);
  EXPECT_EQ(b->held(), 1u);
  Submit(&queue, 2, Expert(0));
  EXPECT_EQ(a->held(), 0u) << "what another lane has is not loaded once more";
  b->Echo();
  EXPECT_EQ(b->oldest()->id, 2);
  b->SetHosted({{.id = Expert(0), .resident = false}});
  Submit(&queue, 3, Expert(0));
  EXPECT_EQ(a->held(), 1u) << "what none has is loaded";
  a->Echo();
  b->Echo();
}

TEST_F(LaneQueueTest, AnotherDigestIsAnotherNetwork) {
  const auto lane = Lane("a", {{.id = Expert(0, "d1")}});
  LaneQueue queue({lane}, &clock_);
  Submit(&queue, 1, Expert(0, "d2"));
  Submit(&queue, 2, Expert(1, "d1"));
  EXPECT_EQ(Answer(1), "NOT_FOUND NETWORK_NOT_HOSTED");
  EXPECT_EQ(Answer(2), "NOT_FOUND NETWORK_NOT_HOSTED");
  EXPECT_EQ(lane->held(), 0u);
}

TEST_F(LaneQueueTest, WhatLanesHostIsFollowed) {
  const auto lane = Lane("a", {{.id = Expert(0)}});
  LaneQueue queue({lane}, &clock_);
  Submit(&queue, 1, Expert(0));
  Submit(&queue, 2, Expert(0));
  lane->SetHosted({{.id = Expert(1)}});
  EXPECT_EQ(Answer(2), "NOT_FOUND NETWORK_NOT_HOSTED");
  Submit(&queue, 3, Expert(1));
  lane->Echo();
  EXPECT_EQ(Answer(1), "value 1");
  EXPECT_EQ(lane->oldest()->id, 3);
  lane->Echo();
}

TEST_F(LaneQueueTest, CancelTakesWhatWaitsAndTellsTheLaneOfWhatRuns) {
  const auto lane = Lane("a", {{.id = Expert(0)}});
  LaneQueue queue({lane}, &clock_);
  Submit(&queue, 1, Expert(0));
  Submit(&queue, 2, Expert(0));
  queue.Cancel(2);
  EXPECT_EQ(Answer(2), "CANCELLED ");
  queue.Cancel(1);
  EXPECT_EQ(lane->cancelled(), std::vector<int64_t>{1});
  EXPECT_EQ(Answer(1), "none");
  queue.Cancel(77);
  lane->Echo();
  EXPECT_EQ(Answer(1), "value 1");
  EXPECT_EQ(lane->held(), 0u);
}

TEST_F(LaneQueueTest, ABatchThatNobodyWaitsForIsNotStarted) {
  const auto lane = Lane("a", {{.id = Expert(0)}});
  LaneQueue queue({lane}, &clock_);
  Submit(&queue, 1, Expert(0));
  Submit(&queue, 2, Expert(0), clock_.Monotonic() + absl::Seconds(1));
  Submit(&queue, 3, Expert(0), clock_.Monotonic() + absl::Seconds(3));
  clock_.Advance(absl::Seconds(2));
  lane->Echo();
  EXPECT_EQ(Answer(2), "DEADLINE_EXCEEDED ");
  EXPECT_EQ(lane->oldest()->id, 3);
  lane->Echo();
}

TEST_F(LaneQueueTest, TheEndAnswersWhatWaitsAndWaitsForWhatRuns) {
  const auto lane = Lane("a", {{.id = Expert(0)}});
  auto queue = std::make_unique<LaneQueue>(std::vector<std::shared_ptr<router::ExpertLane>>{lane}, &clock_);
  Submit(queue.get(), 1, Expert(0));
  Submit(queue.get(), 2, Expert(0));
  std::thread end([&] { queue.reset(); });
  EXPECT_TRUE(lane->AwaitCancelled(1));
  EXPECT_EQ(Answer(2), "UNAVAILABLE EXPERT_SERVER_STOPPING");
  EXPECT_EQ(Answer(1), "none");
  lane->Echo();
  end.join();
  EXPECT_EQ(Answer(1), "value 1");
}

TEST(CheckRowsTest, ListsAndTensorsMustFitTheShape) {
  Evaluation good{.channels = 2, .height = 3, .width = 4};
  good.rows = {.count = 2, .x = std::vector<float>(48), .t = {1, 1}, .classes = {0, 1}};
  EXPECT_TRUE(CheckRows(good).ok());
  const std::vector<std::pair<std::string, std::function<void(Evaluation*)>>> damages = {
      {"no rows", [](Evaluation* e) { e->rows.count = 0; }},
      {"negative rows", [](Evaluation* e) { e->rows.count = -1; }},
      {"too many rows", [](Evaluation* e) { e->rows.count = 3; }},
      {"an overflow",
       [](Evaluation* e) {
         e->channels = e->height = e->width = 1 << 22;
         e->rows.count = 1 << 22;
       }},
      {"no width", [](Evaluation* e) { e->width = 0; }},
      {"negative extents", [](Evaluation* e) { e->width = -4, e->height = -3; }},
      {"too little x", [](Evaluation* e) { e->rows.x.pop_back(); }},
      {"too little estimate", [](Evaluation* e) { e->rows.estimate.resize(47); }},
      {"too few times", [](Evaluation* e) { e->rows.t.pop_back(); }},
      {"too many classes", [](Evaluation* e) { e->rows.classes.push_back(0); }},
      {"too few null classes", [](Evaluation* e) { e->rows.null_classes = {9}; }},
  };
  for (const auto& [name, damage] : damages) {
    Evaluation damaged = good;
    damage(&damaged);
    EXPECT_EQ(ErrorReason(CheckRows(damaged)), "SHAPE_MISMATCH") << name;
  }
}

}  // namespace
}  // namespace atl::worker
