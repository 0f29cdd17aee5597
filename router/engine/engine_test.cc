#include "router/engine/engine.h"

#include <limits>

#include "common/base/errors.h"
#include "common/base/fake_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/engine/testing/fake_backend.h"
#include "router/engine/testing/recorded_events.h"
#include "router/engine/testing/serve_inline.h"
#include "router/engine/testing/ticked_engine.h"

namespace atl::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Seen = FakeBackend::SeenBatch;

SamplerInfo Info(const std::string& model = "digits", const std::string& version = "v1") {
  return {.model = model, .version = version, .experts = 4, .classes = 10, .channels = 1, .height = 2, .width = 2};
}

SampleRequest Asking(std::vector<int32_t> classes, int32_t steps) {
  SampleRequest request{.classes = std::move(classes), .steps = steps};
  request.guidance = 1.0;
  request.format = ImageFormat::kRaw;
  return request;
}

class EngineTest : public ::testing::Test {
 protected:
  void Build(EngineOptions options = {}) {
    engine_ = std::make_unique<TickedEngine>(options, &clock_, nullptr);
    ServeInline(engine_.get(), backend_, &clock_);
  }
  // The request's events; its ticket is kept until the test ends or drops it.
  std::shared_ptr<RecordedEvents> Submit(const SampleRequest& request,
                                         absl::Duration deadline = absl::InfiniteDuration()) {
    auto events = std::make_shared<RecordedEvents>();
    auto ticket = engine_->Submit(request, deadline, events);
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    if (ticket.ok()) tickets_[events.get()] = *std::move(ticket);
    return events;
  }
  void Drop(const std::shared_ptr<RecordedEvents>& events) { tickets_.erase(events.get()); }
  void RunAll() {
    for (int i = 0; i < 1000 && engine_->RunTick(); ++i) {
    }
  }
  absl::Status Refusal(const SampleRequest& request) {
    return engine_->Submit(request, absl::InfiniteDuration(), std::make_shared<RecordedEvents>()).status();
  }

  FakeClock clock_;
  std::shared_ptr<FakeBackend> backend_ = std::make_shared<FakeBackend>(Info());
  std::unique_ptr<TickedEngine> engine_;
  std::map<RecordedEvents*, std::unique_ptr<SampleTicket>> tickets_;
};

TEST_F(EngineTest, AStreamIsQueuedProgressImagesDone) {
  Build();
  const auto events = Submit(Asking({3, 5}, 2));
  EXPECT_THAT(events->log(), ElementsAre("queued 0 v1"));
  RunAll();
  EXPECT_THAT(events->log(), ElementsAre("queued 0 v1", "progress 1/2", "progress 2/2", "image 0", "image 1", "done"));
  const SampleReport report = events->report();
  EXPECT_EQ(report.version, "v1");
  EXPECT_THAT(report.routing.chosen, ElementsAre(0, 2, 0, 2));
  EXPECT_EQ(report.routing.image_steps, 4);
  EXPECT_EQ(report.routing.mean_entropy(), 0);
}

TEST_F(EngineTest, RequestsInFlightTogetherShareBatchesPerExpert) {
  Build();
  const auto a = Submit(Asking({0, 1}, 3));
  const auto b = Submit(Asking({0, 4, 1}, 3));
  SampleRequest guided = Asking({1, -1}, 3);
  guided.guidance = 2.0;
  const auto c = Submit(guided);
  engine_->RunTick();
  // All seven images ask the router network at once. Expert 0 draws 0, 0, 4 and the image without a class; expert 1
  // draws both plain ones in one batch and the guided one, with its null branch, in another.
  EXPECT_THAT(backend_->TakeSeen(), ElementsAre(Seen{-1, 7}, Seen{0, 4}, Seen{1, 2}, Seen{1, 2}));
}

TEST_F(EngineTest, ANewRequestJoinsAtTheNextStepWhateverStepTheOthersAreAt) {
  Build();
  const auto first = Submit(Asking({0}, 5));
  engine_->RunTick();
  EXPECT_THAT(backend_->TakeSeen(), ElementsAre(Seen{-1, 1}, Seen{0, 1}));
  const auto second = Submit(Asking({0, 0}, 2));
  engine_->RunTick();
  EXPECT_THAT(backend_->TakeSeen(), ElementsAre(Seen{-1, 3}, Seen{0, 3}));
  engine_->RunTick();
  EXPECT_TRUE(second->over());
  EXPECT_FALSE(first->over());
}

TEST_F(EngineTest, RequestsOfAVersionThatHasToGoAreEndedAndOthersStay) {
  Build();
  const auto old = Submit(Asking({0, 1}, 3));
  engine_->RunTick();
  ServeInline(engine_.get(), std::make_shared<FakeBackend>(Info("digits", "v2")), &clock_);
  const auto fresh = Submit(Asking({0}, 3));
  const auto cancelled = Submit(Asking({0}, 3));
  Drop(cancelled);
  engine_->EndRequestsOn("digits", "v1");
  RunAll();
  EXPECT_EQ(old->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(old->status()), "VERSION_DRAINED");
  EXPECT_THAT(std::string(old->status().message()), HasSubstr("after step 1 of 3"));
  EXPECT_EQ(cancelled->status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(fresh->log().back(), "done");
  EXPECT_EQ(engine_->RequestsOn("digits", "v1"), 0);
  EXPECT_FALSE(engine_->RunTick()) << "nothing is left to do";
}

TEST_F(EngineTest, ACancelledRequestLeavesAtTheNextStepAndTheOthersStay) {
  Build();
  const auto stays = Submit(Asking({0}, 3));
  const auto leaves = Submit(Asking({0, 0, 0}, 3));
  engine_->RunTick();
  backend_->TakeSeen();
  Drop(leaves);
  engine_->RunTick();
  EXPECT_THAT(backend_->TakeSeen(), ElementsAre(Seen{-1, 1}, Seen{0, 1}));
  EXPECT_EQ(leaves->status().code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(std::string(leaves->status().message()), HasSubstr("after step 1 of 3"));
  RunAll();
  EXPECT_EQ(stays->log().back(), "done");
  EXPECT_EQ(engine_->RequestsOn("digits", "v1"), 0);
}

TEST_F(EngineTest, AnExpiredRequestLeavesWithDeadlineExceededQueuedOrInFlight) {
  EngineOptions options;
  options.admission.max_images_in_flight = 2;
  Build(options);
  const auto sampled = Submit(Asking({0, 0}, 100), clock_.Monotonic() + absl::Seconds(5));
  const auto queued = Submit(Asking({0}, 100), clock_.Monotonic() + absl::Seconds(5));
  engine_->RunTick();
  clock_.Advance(absl::Seconds(5));
  engine_->RunTick();
  EXPECT_EQ(sampled->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(sampled->status().message()), HasSubstr("after step 1 of 100"));
  EXPECT_EQ(ErrorReason(queued->status()), "DEADLINE_EXPIRED");
  EXPECT_THAT(std::string(queued->status().message()), HasSubstr("in the queue"));
}

TEST_F(EngineTest, AFullQueueRefusesUntilResultsWereTaken) {
  EngineOptions options;
  options.admission = {.max_images_in_flight = 2, .max_queued_images = 3, .max_queued_requests = 2};
  Build(options);
  const auto held = Submit(Asking({0, 0}, 1));
  RunAll();
  EXPECT_EQ(held->log().back(), "done");
  // Done, but its results were not taken: the next one waits.
  const auto waits = Submit(Asking({0}, 1));
  EXPECT_FALSE(engine_->RunTick());
  EXPECT_THAT(waits->log(), ElementsAre("queued 2 v1"));
  const auto waits_too = Submit(Asking({0}, 1));
  const absl::Status refused = Refusal(Asking({0}, 1));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(refused), "QUEUE_FULL");
  EXPECT_GT(RetryDelayOf(refused), absl::ZeroDuration());
  Drop(held);
  RunAll();
  EXPECT_EQ(waits_too->log().back(), "done");
}

TEST_F(EngineTest, AFailedExpertFailsOnlyTheRequestsThatAskedIt) {
  Build();
  backend_->expert_status = [](int32_t expert) {
    return expert == 2 ? MakeError(absl::StatusCode::kInternal, "NETWORK_FAILED", "no answer") : absl::OkStatus();
  };
  const auto harmed = Submit(Asking({0, 2}, 3));
  const auto unharmed = Submit(Asking({0, 1}, 3));
  RunAll();
  EXPECT_EQ(harmed->status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(harmed->status().message()), HasSubstr("expert 2"));
  EXPECT_EQ(unharmed->log().back(), "done");
}

TEST_F(EngineTest, PixelsThatAreNotFiniteAreAnErrorNotAPicture) {
  Build();
  backend_->velocity = [](int32_t, std::span<const float> x, float, int64_t) {
    return std::vector<float>(x.size(), std::numeric_limits<float>::infinity());
  };
  const auto events = Submit(Asking({0}, 1));
  RunAll();
  EXPECT_EQ(ErrorReason(events->status()), "NON_FINITE_OUTPUT");
}

TEST_F(EngineTest, APosteriorThatIsNotFiniteFailsTheRequest) {
  Build();
  backend_->posterior = [](std::span<const float>, float, int64_t) {
    return std::vector<float>(4, std::numeric_limits<float>::quiet_NaN());
  };
  const auto events = Submit(Asking({0}, 1));
  RunAll();
  EXPECT_EQ(ErrorReason(events->status()), "NON_FINITE_OUTPUT");
}

TEST_F(EngineTest, ARequestKeepsItsVersionWhenAnotherIsSwitchedIn) {
  Build();
  const auto on_old = Submit(Asking({0}, 4));
  engine_->RunTick();
  const auto next = std::make_shared<FakeBackend>(Info("digits", "v2"));
  ServeInline(engine_.get(), next, &clock_);
  const auto on_new = Submit(Asking({0}, 4));
  EXPECT_EQ(engine_->RequestsOn("digits", "v1"), 1);
  EXPECT_EQ(engine_->RequestsOn("digits", "v2"), 1);
  backend_->TakeSeen();
  engine_->RunTick();
  EXPECT_THAT(backend_->TakeSeen(), ElementsAre(Seen{-1, 1}, Seen{0, 1}));
  EXPECT_THAT(next->TakeSeen(), ElementsAre(Seen{-1, 1}, Seen{0, 1}));
  RunAll();
  EXPECT_EQ(on_old->report().version, "v1");
  EXPECT_EQ(on_new->report().version, "v2");
  EXPECT_EQ(engine_->RequestsOn("digits", "v1"), 0);
}

TEST_F(EngineTest, ModelsAreFoundByNameAndTheOnlyOneNeedsNone) {
  engine_ = std::make_unique<TickedEngine>(EngineOptions{}, &clock_, nullptr);
  EXPECT_EQ(ErrorReason(Refusal(Asking({0}, 1))), "NO_MODEL");
  EXPECT_EQ(engine_->Info("").status().code(), absl::StatusCode::kFailedPrecondition);
  ServeInline(engine_.get(), backend_, &clock_);
  EXPECT_TRUE(engine_->Info("").ok());
  ServeInline(engine_.get(), std::make_shared<FakeBackend>(Info("faces")), &clock_);
  SampleRequest request = Asking({0}, 1);
  request.model = "birds";
  EXPECT_EQ(Refusal(request).code(), absl::StatusCode::kNotFound);
  engine_->Expect("birds");
  EXPECT_EQ(ErrorReason(Refusal(request)), "MODEL_LOADING");
  EXPECT_EQ(Refusal(request).code(), absl::StatusCode::kUnavailable);
  request.model = "";
  EXPECT_EQ(ErrorReason(Refusal(request)), "MODEL_REQUIRED");
  request.model = "cats";
  const absl::Status unknown = Refusal(request);
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("'digits', 'faces'"));
  request.model = "faces";
  request.version = "v9";
  EXPECT_EQ(ErrorReason(Refusal(request)), "UNKNOWN_VERSION");
  request.version = "v1";
  const auto events = Submit(request);
  RunAll();
  EXPECT_EQ(events->log().back(), "done");
}

TEST_F(EngineTest, AModelThatIsExpectedIsLoadingWhereNoneIsServed) {
  engine_ = std::make_unique<TickedEngine>(EngineOptions{}, &clock_, nullptr);
  engine_->Expect("digits");
  for (const char* model : {"", "digits"}) {
    SampleRequest request = Asking({0}, 1);
    request.model = model;
    EXPECT_EQ(ErrorReason(Refusal(request)), "MODEL_LOADING") << model;
    EXPECT_EQ(engine_->Info(model).status().code(), absl::StatusCode::kUnavailable) << model;
  }
  EXPECT_EQ(ErrorReason(engine_->Info("birds").status()), "NO_MODEL");
  EXPECT_THAT(engine_->Versions("digits"), ElementsAre());
  ServeInline(engine_.get(), backend_, &clock_);
  EXPECT_TRUE(engine_->Info("").ok());
  EXPECT_TRUE(engine_->Info("digits").ok());
}

TEST_F(EngineTest, DrainingRefusesNewRequestsAndFinishesTheOldOnes) {
  engine_ = std::make_unique<TickedEngine>(EngineOptions{}, Clock::Real(), nullptr);
  ServeInline(engine_.get(), backend_, &clock_);
  engine_->Start();
  const auto events = Submit(Asking({0, 1, 2}, 50));
  engine_->Drain(absl::Seconds(30));
  EXPECT_TRUE(events->over());
  EXPECT_EQ(events->log().back(), "done");
  EXPECT_EQ(ErrorReason(Refusal(Asking({0}, 1))), "DRAINING");
  engine_->Stop();
}

TEST_F(EngineTest, StoppingEndsWhatIsLeft) {
  Build();
  const auto in_flight = Submit(Asking({0}, 10));
  engine_->RunTick();
  const auto queued = Submit(Asking({0}, 10));
  engine_->Stop();
  EXPECT_EQ(in_flight->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(queued->status()), "DRAINING");
}

}  // namespace
}  // namespace atl::router
