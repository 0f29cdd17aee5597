// The engine over lanes that answer late, in any order, or never.
#include <atomic>
#include <thread>

#include "common/base/errors.h"
#include "common/base/fake_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/engine/engine.h"
#include "router/engine/testing/fake_backend.h"
#include "router/engine/testing/recorded_events.h"
#include "router/engine/testing/scripted_lane.h"
#include "router/engine/testing/ticked_engine.h"

namespace atl::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

SamplerInfo Info(const std::string& version = "v1") {
  return {.model = "digits", .version = version, .experts = 4, .classes = 10, .channels = 1, .height = 2, .width = 2};
}

class EngineLanesTest : public ::testing::Test {
 protected:
  EngineLanesTest() { engine_.Serve(std::make_shared<ServedVersion>(ServedVersion{.info = Info()})); }

  std::shared_ptr<ScriptedLane> AddLane(const std::string& name, const std::vector<int32_t>& experts = {-1, 0, 1, 2, 3},
                                        int32_t slots = 1, int64_t max_batch_values = 0) {
    auto lane = std::make_shared<ScriptedLane>(
        LaneInfo{.name = name, .slots = slots, .max_batch_values = max_batch_values}, backend_);
    lane->Host(experts);
    engine_.AddLane(lane);
    return lane;
  }
  std::shared_ptr<RecordedEvents> Submit(std::vector<int32_t> classes, int32_t steps,
                                         absl::Duration deadline = absl::InfiniteDuration()) {
    SampleRequest request{.classes = std::move(classes), .steps = steps};
    request.guidance = 1.0;
    request.format = ImageFormat::kRaw;
    auto events = std::make_shared<RecordedEvents>();
    auto ticket = engine_.Submit(request, deadline, events);
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    if (ticket.ok()) tickets_[events.get()] = *std::move(ticket);
    return events;
  }
  void Drop(const std::shared_ptr<RecordedEvents>& events) { tickets_.erase(events.get()); }
  // "1x7" is expert 1 on seven rows.
  static std::vector<std::string> Started(const std::shared_ptr<ScriptedLane>& lane) {
    std::vector<std::string> text;
    for (const auto& evaluation : lane->started()) {
      text.push_back(fmt::format("{}x{}", evaluation->network.expert, evaluation->rows.count));
    }
    return text;
  }

  FakeClock clock_;
  std::shared_ptr<FakeBackend> backend_ = std::make_shared<FakeBackend>(Info());
  TickedEngine engine_{{}, &clock_, nullptr};
  std::map<RecordedEvents*, std::unique_ptr<SampleTicket>> tickets_;
};

TEST_F(EngineLanesTest, NoBatchIsLargerThanAnyLaneTakes) {
  const auto whole = AddLane("takes any", {-1, 0});
  AddLane("takes two images", {}, 1, 2 * 2 * 4);  // of four pixels, with two branches each
  Submit({0, 0, 0, 0, 0}, 1);
  engine_.RunTick();
  EXPECT_THAT(Started(whole), ElementsAre("-1x2")) << "another lane may have to take it over";
  while (engine_.RunTick()) {
    for (const auto& evaluation : whole->started()) EXPECT_LE(evaluation->rows.count, 2);
    ASSERT_GT(whole->AnswerAll(), 0);
  }
}

TEST_F(EngineLanesTest, ImagesGoOnAsSoonAsTheirOwnAnswersAreThere) {
  const auto quick = AddLane("quick", {-1, 0});
  const auto hung = AddLane("hung", {1});
  const auto on_quick = Submit({0}, 3);
  const auto on_hung = Submit({1}, 3);
  for (int i = 0; i < 10; ++i) {
    engine_.RunTick();
    quick->AnswerAll();
  }
  EXPECT_EQ(on_quick->log().back(), "done") << "a lane that hangs keeps nobody who does not need it";
  EXPECT_FALSE(on_hung->over());
  EXPECT_THAT(Started(hung), ElementsAre("1x1"));
  hung->AnswerAll();
  for (int i = 0; i < 10; ++i) {
    engine_.RunTick();
    quick->AnswerAll();
    hung->AnswerAll();
  }
  EXPECT_EQ(on_hung->log().back(), "done");
}

TEST_F(EngineLanesTest, ALaneIsGivenNoMoreThanItsSlotsAndTheNextBatchGrowsMeanwhile) {
  const auto lane = AddLane("lane");
  Submit({0}, 2);
  engine_.RunTick();
  Submit({0}, 2);
  Submit({0}, 2);
  engine_.RunTick();
  EXPECT_THAT(Started(lane), ElementsAre("-1x1"));
  lane->AnswerAll();
  engine_.RunTick();
  // The first request has been served already.
  EXPECT_THAT(Started(lane), ElementsAre("-1x2"));
}

TEST_F(EngineLanesTest, WhatLeaversAskedForIsDroppedAndTheirLaneIsToldSo) {
  const auto lane = AddLane("lane", {-1, 0, 1, 2, 3}, /*slots=*/2);
  const auto leaves = Submit({0}, 3);
  engine_.RunTick();
  const int64_t evaluation = lane->started().front()->id;
  Drop(leaves);
  engine_.RunTick();
  EXPECT_EQ(leaves->status().code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(lane->cancelled(), ElementsAre(evaluation));
  EXPECT_EQ(engine_.RequestsOn("digits", "v1"), 0);
  // Its answer comes all the same, and the slot is free again.
  const auto next = Submit({0}, 1);
  lane->AnswerAll();
  for (int i = 0; i < 5; ++i) {
    engine_.RunTick();
    lane->AnswerAll();
  }
  EXPECT_EQ(next->log().back(), "done");
}

TEST_F(EngineLanesTest, ABatchThatOthersShareIsNotCancelledByALeaver) {
  const auto lane = AddLane("lane");
  const auto stays = Submit({0}, 1);
  const auto leaves = Submit({0}, 1);
  engine_.RunTick();
  EXPECT_THAT(Started(lane), ElementsAre("-1x2"));
  Drop(leaves);
  engine_.RunTick();
  EXPECT_THAT(lane->cancelled(), IsEmpty());
  lane->AnswerAll();
  engine_.RunTick();
  EXPECT_THAT(Started(lane), ElementsAre("0x1"));
  lane->AnswerAll();
  engine_.RunTick();
  EXPECT_EQ(stays->log().back(), "done");
}

TEST_F(EngineLanesTest, ADeadlineIsKeptWhateverTheLaneDoes) {
  const auto hung = AddLane("hung");
  const auto events = Submit({0}, 3, clock_.Monotonic() + absl::Seconds(1));
  engine_.RunTick();
  clock_.Advance(absl::Seconds(1));
  engine_.RunTick();
  EXPECT_EQ(ErrorReason(events->status()), "DEADLINE_EXPIRED");
  EXPECT_THAT(hung->cancelled(), SizeIs(1));
}

TEST_F(EngineLanesTest, ANetworkThatNobodyHostsIsWaitedForAndThenLostByName) {
  const auto lane = AddLane("lane", {-1, 0});
  const auto events = Submit({1}, 1);
  engine_.RunTick();
  lane->AnswerAll();
  engine_.RunTick();
  EXPECT_FALSE(events->over());
  clock_.Advance(absl::Minutes(1));
  engine_.RunTick();
  EXPECT_EQ(events->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(events->status()), "EXPERT_LOST");
  EXPECT_THAT(std::string(events->status().message()), HasSubstr("expert 1 of model 'digits' version 'v1'"));
}

TEST_F(EngineLanesTest, ANetworkThatComesInTimeIsUsed) {
  const auto lane = AddLane("lane", {-1, 0});
  const auto events = Submit({1}, 1);
  engine_.RunTick();
  lane->AnswerAll();
  engine_.RunTick();
  const auto late = AddLane("late", {1});
  engine_.RunTick();
  EXPECT_EQ(late->AnswerAll(), 1);
  engine_.RunTick();
  EXPECT_EQ(events->log().back(), "done");
}

TEST_F(EngineLanesTest, AnAnswerOfTheWrongSizeIsAnErrorOfItsRequests) {
  const auto lane = AddLane("lane");
  backend_->velocity = [](int32_t, std::span<const float>, float, int64_t) { return std::vector<float>(3); };
  const auto events = Submit({0}, 1);
  for (int i = 0; i < 3; ++i) {
    engine_.RunTick();
    lane->AnswerAll();
  }
  EXPECT_EQ(ErrorReason(events->status()), "NETWORK_FAILED");
}

TEST_F(EngineLanesTest, APinnedVersionIsUsedWhileItIsOffered) {
  const auto old_backend = std::make_shared<FakeBackend>(Info("v0"));
  const auto old_lane = std::make_shared<ScriptedLane>(LaneInfo{.name = "old"}, old_backend);
  engine_.AddLane(old_lane);
  AddLane("lane");
  SampleRequest request{.version = "v0", .classes = {0}, .steps = 1};
  const auto refusal = [&] {
    return engine_.Submit(request, absl::InfiniteDuration(), std::make_shared<RecordedEvents>()).status();
  };
  EXPECT_EQ(ErrorReason(refusal()), "UNKNOWN_VERSION");
  engine_.Offer(std::make_shared<ServedVersion>(ServedVersion{.info = Info("v0")}));
  const auto events = std::make_shared<RecordedEvents>();
  const auto ticket = engine_.Submit(request, absl::InfiniteDuration(), events);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  engine_.Withdraw("digits", "v0");
  EXPECT_EQ(ErrorReason(refusal()), "UNKNOWN_VERSION");
  for (int i = 0; i < 3; ++i) {
    engine_.RunTick();
    old_lane->AnswerAll();
  }
  EXPECT_EQ(events->log().back(), "done") << "it keeps its version to the end";
}

TEST_F(EngineLanesTest, ResultsThatNobodyTakesGiveTheirPlaceToOthers) {
  class Sluggish : public RecordedEvents {
   public:
    void OnNotTaken() override { told = true; }
    std::atomic<bool> told = false;
  };
  const auto lane = AddLane("lane");
  const auto events = std::make_shared<Sluggish>();
  auto ticket = engine_.Submit({.classes = {0}, .steps = 1}, absl::InfiniteDuration(), events);
  ASSERT_TRUE(ticket.ok());
  for (int i = 0; i < 4; ++i) {
    engine_.RunTick();
    lane->AnswerAll();
  }
  EXPECT_EQ(events->log().back(), "done");
  clock_.Advance(engine_.options().max_delivery_time - absl::Milliseconds(1));
  engine_.RunTick();
  EXPECT_FALSE(events->told);
  clock_.Advance(absl::Milliseconds(1));
  engine_.RunTick();
  EXPECT_TRUE(events->told);
}

TEST_F(EngineLanesTest, StoppingWaitsForNoLane) {
  Engine engine({}, Clock::Real(), nullptr);
  engine.Serve(std::make_shared<ServedVersion>(ServedVersion{.info = Info()}));
  const auto hung = std::make_shared<ScriptedLane>(LaneInfo{.name = "hung"}, backend_);
  engine.AddLane(hung);
  engine.Start();
  const auto events = std::make_shared<RecordedEvents>();
  const auto ticket = engine.Submit({.classes = {0}, .steps = 3}, absl::InfiniteDuration(), events);
  ASSERT_TRUE(ticket.ok());
  while (hung->started().empty()) std::this_thread::yield();
  engine.Drain(absl::Milliseconds(1));
  engine.Stop();
  EXPECT_EQ(ErrorReason(events->status()), "DRAINING");
  EXPECT_EQ(hung->AnswerAll(), 1) << "into nowhere";
}

// Hears of previews too.
class PreviewedEvents : public RecordedEvents {
 public:
  void OnPreviews(std::vector<SampledImage> previews) override {
    for (SampledImage& preview : previews) {
      absl::MutexLock lock(&preview_mutex_);
      previews_.push_back(std::move(preview));
    }
  }
  std::vector<SampledImage> AwaitPreviews(size_t count) {
    absl::MutexLock lock(&preview_mutex_);
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(preview_mutex_) { return previews_.size() >= count; };
    preview_mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(20));
    return previews_;
  }

 private:
  absl::Mutex preview_mutex_;
  std::vector<SampledImage> previews_ ABSL_GUARDED_BY(preview_mutex_);
};

TEST_F(EngineLanesTest, AStartedEngineMakesPreviewsBesideSampling) {
  Engine engine({}, Clock::Real(), nullptr);
  engine.Serve(std::make_shared<ServedVersion>(ServedVersion{.info = Info()}));
  const auto lane = std::make_shared<ScriptedLane>(LaneInfo{.name = "lane"}, backend_);
  engine.AddLane(lane);
  engine.Start();
  const auto events = std::make_shared<PreviewedEvents>();
  SampleRequest request{.classes = {0}, .steps = 2};
  request.preview_every = 1;
  const auto ticket = engine.Submit(request, absl::InfiniteDuration(), events);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  // The router network, then the expert: the first step.
  for (int call = 0; call < 2; ++call) {
    while (lane->AnswerAll() == 0) std::this_thread::yield();
  }
  const std::vector<SampledImage> previews = events->AwaitPreviews(1);
  ASSERT_THAT(previews, SizeIs(1));
  EXPECT_THAT(previews[0].data, HasSubstr("PNG"));
  while (!events->over()) {
    lane->AnswerAll();
    std::this_thread::yield();
  }
  EXPECT_EQ(events->log().back(), "done");
  EXPECT_THAT(events->images(), SizeIs(1));
  engine.Stop();
}

TEST_F(EngineLanesTest, AStartedEngineNeedsNoTicksAndMakesPicturesBesideSampling) {
  Engine engine({}, Clock::Real(), nullptr);
  engine.Serve(std::make_shared<ServedVersion>(ServedVersion{.info = Info()}));
  engine.AddLane(std::make_shared<InlineLane>(LaneInfo{.name = "inline"}, backend_, "", Clock::Real()));
  engine.Start();
  const auto events = std::make_shared<RecordedEvents>();
  const auto ticket = engine.Submit({.classes = {0, 1, 2, 3}, .steps = 5}, absl::InfiniteDuration(), events);
  ASSERT_TRUE(ticket.ok());
  engine.Drain(absl::Seconds(30));
  EXPECT_EQ(events->log().back(), "done");
  ASSERT_THAT(events->images(), SizeIs(4));
  for (const SampledImage& image : events->images()) EXPECT_THAT(image.data, HasSubstr("PNG"));
  engine.Stop();
}

}  // namespace
}  // namespace atl::router
