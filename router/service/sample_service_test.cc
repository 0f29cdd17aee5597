// SampleService over a real gRPC server, with a fake model version. Most tests have no sampling thread: they run each
// tick themselves, so that what shares a batch is decided by the test and not by the machine.
#include "router/service/sample_service.h"

#include <cmath>
#include <cstring>
#include <thread>

#include "common/base/errors.h"
#include "common/base/fake_clock.h"
#include "common/dataset/image_codec.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/wire/status.h"
#include "common/wire/time_wire.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/error_details.h"
#include "gtest/gtest.h"
#include "router/engine/testing/fake_backend.h"
#include "router/engine/testing/serve_inline.h"
#include "router/engine/testing/ticked_engine.h"
#include "router/service/sample_wire.h"

namespace atl::router {
namespace {

namespace pb = atlpb::sample::v1;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Seen = FakeBackend::SeenBatch;

SamplerInfo Info() {
  return {.model = "digits", .version = "v1", .experts = 4, .classes = 10, .channels = 1, .height = 8, .width = 8};
}

constexpr size_t kPixels = 64;  // of Info()

pb::SampleRequest Asking(std::vector<int32_t> classes, int32_t steps) {
  pb::SampleRequest request;
  request.mutable_classes()->Add(classes.begin(), classes.end());
  request.set_steps(steps);
  request.set_guidance(1.0);
  return request;
}

// One call, read to its end on a thread of its own.
class Call {
 public:
  Call(pb::SampleService::Stub* stub, const pb::SampleRequest& request, absl::Duration timeout = absl::Seconds(30)) {
    rpc::SetTimeout(&context_, timeout);
    reader_ = stub->Sample(&context_, request);
    thread_ = std::thread([this] {
      pb::SampleResponse event;
      while (reader_->Read(&event)) {
        absl::MutexLock lock(&mutex_);
        events_.push_back(event);
      }
      const grpc::Status status = reader_->Finish();
      absl::MutexLock lock(&mutex_);
      status_ = status;
    });
  }
  ~Call() {
    context_.TryCancel();
    if (thread_.joinable()) thread_.join();
  }

  void Cancel() { context_.TryCancel(); }
  bool WaitForEvents(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&] { return events_.size() >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(20));
  }
  grpc::Status Finish() {
    thread_.join();
    absl::MutexLock lock(&mutex_);
    return *status_;
  }
  std::vector<pb::SampleResponse> events() {
    absl::MutexLock lock(&mutex_);
    return events_;
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<pb::SampleResponse>> reader_;
  std::thread thread_;
  absl::Mutex mutex_;
  std::vector<pb::SampleResponse> events_;
  std::optional<grpc::Status> status_;
};

class SampleServiceTest : public ::testing::Test {
 protected:
  void StartServer(EngineOptions options = {}, bool with_model = true) {
    engine_ = std::make_unique<TickedEngine>(options, Clock::Real(), nullptr);
    if (with_model) ServeInline(engine_.get(), backend_, &lane_clock_);
    service_ = std::make_unique<SampleService>(engine_.get(), Clock::Real(), service_options_);
    server_ = *rpc::Server::Start({.services = {{pb::SampleService::service_full_name(), service_.get()}}});
    stub_ = pb::SampleService::NewStub(rpc::MakeChannel(server_->address()));
  }
  void TearDown() override {
    if (engine_ != nullptr) engine_->Stop();
    server_.reset();
  }
  void AwaitWaiting(size_t count) {
    const absl::Time end = absl::Now() + absl::Seconds(20);
    while (engine_->waiting_requests() != count && absl::Now() < end) std::this_thread::yield();
    ASSERT_EQ(engine_->waiting_requests(), count);
  }
  void AwaitNoRequests() {
    const absl::Time end = absl::Now() + absl::Seconds(20);
    while (engine_->RequestsOn("digits", "v1") != 0 && absl::Now() < end) std::this_thread::yield();
    ASSERT_EQ(engine_->RequestsOn("digits", "v1"), 0);
  }
  void RunAll() {
    for (int i = 0; i < 1000 && engine_->RunTick(); ++i) {
    }
  }
  absl::Status StatusOf(const pb::SampleRequest& request) { return rpc::FromGrpc(Call(stub_.get(), request).Finish()); }

  absl::Status Cancel(const std::string& request_id) {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(20));
    pb::CancelSampleRequest request;
    request.set_request_id(request_id);
    pb::CancelSampleResponse response;
    return rpc::FromGrpc(stub_->CancelSample(&context, request, &response));
  }
  static std::string IdOf(Call& call) {
    return call.WaitForEvents(1) ? call.events().front().queued().request_id() : "";
  }

  CallerQuotas quotas_;
  SampleServiceOptions service_options_;
  FakeClock lane_clock_;  // no measured time decides what shares a batch
  std::shared_ptr<FakeBackend> backend_ = std::make_shared<FakeBackend>(Info());
  std::unique_ptr<TickedEngine> engine_;
  std::unique_ptr<SampleService> service_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<pb::SampleService::Stub> stub_;
};

TEST_F(SampleServiceTest, AStreamIsQueuedProgressImagesDone) {
  StartServer();
  pb::SampleRequest request = Asking({3, 5}, 4);
  request.add_seeds(70);
  Call call(stub_.get(), request);
  AwaitWaiting(1);
  RunAll();
  EXPECT_TRUE(call.Finish().ok());
  const std::vector<pb::SampleResponse> events = call.events();
  ASSERT_GE(events.size(), 5u);
  EXPECT_EQ(events.front().queued().version(), "v1");
  int32_t step = 0;
  for (size_t i = 1; i + 3 < events.size(); ++i) {
    ASSERT_TRUE(events[i].has_progress());
    EXPECT_GT(events[i].progress().step(), step);
    EXPECT_EQ(events[i].progress().total_steps(), 4);
    step = events[i].progress().step();
  }
  const pb::Image& second = events[events.size() - 2].image();
  EXPECT_EQ(second.index(), 1);
  EXPECT_EQ(second.class_label(), 5);
  EXPECT_EQ(second.seed(), 71u);
  const auto decoded = dataset::DecodeImage(second.data(), "reply");
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->height, 8);
  const pb::Done& done = events.back().done();
  EXPECT_EQ(done.version(), "v1");
  EXPECT_EQ(done.routing().image_steps(), 8);
  EXPECT_THAT(done.routing().chosen(), ElementsAre(0, 4, 0, 4));
}

TEST_F(SampleServiceTest, ACallerHasItsQuotaOfImagesAndNoMore) {
  service_options_.quotas = &quotas_;
  service_options_.caller = [](const grpc::CallbackServerContext&) -> absl::StatusOr<rpc::Principal> {
    return rpc::Principal{.subject = "alice", .quota = {.images_in_flight = 3}};
  };
  StartServer();
  Call first(stub_.get(), Asking({0, 1}, 2));
  AwaitWaiting(1);
  EXPECT_EQ(ErrorReason(StatusOf(Asking({0, 1}, 2))), "QUOTA_EXCEEDED");
  Call second(stub_.get(), Asking({1}, 2));
  AwaitWaiting(2);
  RunAll();
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_TRUE(second.Finish().ok());
  server_->Shutdown(absl::Seconds(20));  // every stream is over
  EXPECT_TRUE(quotas_.Take("alice", 3, {.in_flight = 3}, absl::ZeroDuration()).ok()) << "its shares came back";
}

TEST_F(SampleServiceTest, ACallerWhoAsksTooFastIsToldWhenToComeBack) {
  service_options_.quotas = &quotas_;
  service_options_.caller = [](const grpc::CallbackServerContext&) -> absl::StatusOr<rpc::Principal> {
    return rpc::Principal{.subject = "alice", .quota = {.images_per_minute = 2}};
  };
  StartServer();
  Call first(stub_.get(), Asking({0, 1}, 2));
  AwaitWaiting(1);
  Call second(stub_.get(), Asking({1}, 2));
  const grpc::Status refused = second.Finish();
  EXPECT_EQ(ErrorReason(rpc::FromGrpc(refused)), "QUOTA_EXCEEDED");
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(refused.error_details()));
  ASSERT_EQ(details.details_size(), 2);
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(details.details(1).UnpackTo(&retry));
  EXPECT_GT(wire::FromProto(retry.retry_delay()), absl::ZeroDuration());
  EXPECT_LE(wire::FromProto(retry.retry_delay()), absl::Seconds(30));
  RunAll();
  EXPECT_TRUE(first.Finish().ok());
}

TEST_F(SampleServiceTest, ConcurrentRequestsShareBatches) {
  StartServer();
  Call a(stub_.get(), Asking({0, 1}, 2));
  AwaitWaiting(1);
  Call b(stub_.get(), Asking({0, 4, 1}, 2));
  Call c(stub_.get(), Asking({1}, 2));
  AwaitWaiting(3);
  engine_->RunTick();
  // Expert 0 has three images of two requests in one batch, expert 1 three images of three.
  std::vector<Seen> seen = backend_->TakeSeen();
  std::sort(seen.begin(), seen.end(), [](const Seen& x, const Seen& y) { return x.expert < y.expert; });
  EXPECT_THAT(seen, ElementsAre(Seen{-1, 6}, Seen{0, 3}, Seen{1, 3}));
  RunAll();
  EXPECT_TRUE(a.Finish().ok());
  EXPECT_TRUE(b.Finish().ok());
  EXPECT_TRUE(c.Finish().ok());
}

TEST_F(SampleServiceTest, CancellingTheCallTakesItsImagesOutAtTheNextStep) {
  StartServer();
  Call stays(stub_.get(), Asking({0}, 3));
  AwaitWaiting(1);
  Call leaves(stub_.get(), Asking({0, 0, 0}, 3));
  AwaitWaiting(2);
  engine_->RunTick();
  EXPECT_THAT(backend_->TakeSeen(), ElementsAre(Seen{-1, 4}, Seen{0, 4}));
  leaves.Cancel();
  EXPECT_EQ(leaves.Finish().error_code(), grpc::StatusCode::CANCELLED);
  // The server hears of it a little later than the caller; no step may come before.
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (!engine_->has_leavers() && absl::Now() < end) std::this_thread::yield();
  engine_->RunTick();
  EXPECT_THAT(backend_->TakeSeen(), ElementsAre(Seen{-1, 1}, Seen{0, 1}));
  RunAll();
  EXPECT_TRUE(stays.Finish().ok());
}

TEST_F(SampleServiceTest, ARequestIsCancelledByItsIdAndOnlyThatOne) {
  StartServer();
  Call stays(stub_.get(), Asking({0}, 3));
  AwaitWaiting(1);
  Call leaves(stub_.get(), Asking({0, 0}, 3));
  AwaitWaiting(2);
  const std::string id = IdOf(leaves);
  EXPECT_EQ(id.size(), 32u);
  EXPECT_NE(id, IdOf(stays));
  engine_->RunTick();
  EXPECT_THAT(backend_->TakeSeen(), ElementsAre(Seen{-1, 3}, Seen{0, 3}));
  EXPECT_TRUE(Cancel(id).ok());
  engine_->RunTick();
  EXPECT_THAT(backend_->TakeSeen(), ElementsAre(Seen{-1, 1}, Seen{0, 1}));
  const absl::Status status = rpc::FromGrpc(leaves.Finish());
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(ErrorReason(status), "REQUEST_CANCELLED");
  EXPECT_EQ(ErrorReason(Cancel(id)), "UNKNOWN_REQUEST");
  RunAll();
  EXPECT_TRUE(stays.Finish().ok());
}

TEST_F(SampleServiceTest, AnUnknownOrFinishedRequestCannotBeCancelled) {
  StartServer();
  Call call(stub_.get(), Asking({0}, 2));
  const std::string id = IdOf(call);
  RunAll();
  EXPECT_TRUE(call.Finish().ok());
  for (const std::string& unknown : {id, std::string(), std::string(100'000, 'f')}) {
    const absl::Status status = Cancel(unknown);
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(ErrorReason(status), "UNKNOWN_REQUEST");
    EXPECT_LT(status.message().size(), 200u);
  }
}

TEST_F(SampleServiceTest, PreviewsComeEveryNthStepAndImprove) {
  StartServer();
  // A velocity that points at a clean sample of 0.5 from wherever x is.
  backend_->velocity = [](int32_t, std::span<const float> x, float t, int64_t) {
    std::vector<float> velocity(x.begin(), x.end());
    for (float& value : velocity) value = (value - 0.5f) / t;
    return velocity;
  };
  pb::SampleRequest request = Asking({3, 5}, 6);
  request.set_preview_every(2);
  request.set_format(pb::SampleRequest::FORMAT_RAW);
  Call call(stub_.get(), request);
  ASSERT_TRUE(call.WaitForEvents(1));
  size_t events = 1;
  std::vector<int32_t> steps_with_previews;
  for (int32_t step = 1; step <= 5; ++step) {
    engine_->RunTick();
    // The previews of a step may come with its progress or in a message after it.
    for (size_t previews = 0; previews < (step % 2 == 0 ? 2u : 0u);) {
      ASSERT_TRUE(call.WaitForEvents(events + 1));
      for (const std::vector<pb::SampleResponse> all = call.events(); events < all.size(); ++events) {
        EXPECT_EQ(all[events].progress().total_steps(), 6);
        for (const pb::Image& preview : all[events].progress().previews()) {
          ++previews;
          steps_with_previews.push_back(all[events].progress().step());
          ASSERT_EQ(preview.data().size(), 64 * sizeof(float));
          float first = 0;
          std::memcpy(&first, preview.data().data(), sizeof(first));
          EXPECT_NEAR(first, 0.5, 1e-5);
        }
      }
    }
  }
  EXPECT_THAT(steps_with_previews, ElementsAre(2, 2, 4, 4));
  RunAll();
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_TRUE(call.events().back().has_done());
}

TEST_F(SampleServiceTest, DoneTellsTheTimeToTheFirstImage) {
  StartServer();
  engine_->Start();
  Call call(stub_.get(), Asking({0, 1}, 3));
  ASSERT_TRUE(call.Finish().ok());
  const pb::Done done = call.events().back().done();
  const absl::Duration first = wire::FromProto(done.first_image_time());
  EXPECT_GT(first, absl::ZeroDuration());
  EXPECT_LE(first, wire::FromProto(done.queue_time()) + wire::FromProto(done.sample_time()));
}

TEST_F(SampleServiceTest, ADeadlineEndsTheCallAndTheWork) {
  StartServer();
  engine_->Start();
  backend_->velocity = [](int32_t, std::span<const float> x, float, int64_t) {
    absl::SleepFor(absl::Milliseconds(5));  // work that takes longer than the caller waits
    return std::vector<float>(x.size(), 0);
  };
  Call call(stub_.get(), Asking({0}, 250), absl::Milliseconds(200));
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  AwaitNoRequests();
}

TEST_F(SampleServiceTest, ACallerThatDoesNotReadHoldsUpNobody) {
  StartServer();
  engine_->Start();
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(30));
  const auto silent = stub_->Sample(&context, Asking(std::vector<int32_t>(1000, 0), 20));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Call(stub_.get(), Asking({1, 2}, 5)).Finish().ok());
  context.TryCancel();
  silent->Finish();
}

TEST_F(SampleServiceTest, ResultsThatAreReadTooSlowlyAreDroppedAndGiveTheirPlaceBack) {
  constexpr int kImages = 300;  // of 48 KiB: more than the connection's buffers take
  EngineOptions options;
  options.admission.max_images_in_flight = kImages;
  options.max_delivery_time = absl::Milliseconds(200);
  SamplerInfo large = Info();
  large.channels = 3;
  large.height = large.width = 64;
  backend_ = std::make_shared<FakeBackend>(large);
  StartServer(options);
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(60));
  pb::SampleRequest request = Asking(std::vector<int32_t>(kImages, 0), 2);
  request.set_format(pb::SampleRequest::FORMAT_RAW);
  request.set_preview_every(1);
  const auto slow = stub_->Sample(&context, request);
  AwaitWaiting(1);
  engine_->Start();
  EXPECT_TRUE(Call(stub_.get(), Asking({1, 2}, 5)).Finish().ok());
  pb::SampleResponse event;
  int images = 0;
  while (slow->Read(&event)) images += event.has_image() ? 1 : 0;
  EXPECT_EQ(ErrorReason(rpc::FromGrpc(slow->Finish())), "RESULTS_NOT_TAKEN");
  EXPECT_LT(images, kImages);
}

struct BadCase {
  std::string name;
  std::function<void(pb::SampleRequest&)> spoil;
  std::string field;
  std::string reason;
};

TEST_F(SampleServiceTest, BadRequestsNameFieldAndReason) {
  StartServer();
  engine_->Start();
  const std::vector<BadCase> cases = {
      {"class", [](auto& r) { r.set_classes(0, 12); }, "classes[0]", "UNKNOWN_CLASS"},
      {"steps", [](auto& r) { r.set_steps(1000); }, "steps", "VALUE_OUT_OF_RANGE"},
      {"images", [](auto& r) { r.mutable_classes()->Resize(2'000'000, 0); }, "classes", "TOO_MANY_IMAGES"},
      {"mode", [](auto& r) { r.set_mode(static_cast<pb::SampleRequest::Mode>(77)); }, "mode", "UNKNOWN_MODE"},
      {"solver", [](auto& r) { r.set_solver(static_cast<pb::SampleRequest::Solver>(9)); }, "solver", "UNKNOWN_SOLVER"},
      {"format", [](auto& r) { r.set_format(static_cast<pb::SampleRequest::Format>(9)); }, "format", "UNKNOWN_FORMAT"},
      {"top_k", [](auto& r) { r.set_top_k(99); }, "top_k", "VALUE_OUT_OF_RANGE"},
      {"guidance", [](auto& r) { r.set_guidance(std::nan("")); }, "guidance", "VALUE_OUT_OF_RANGE"},
      {"guidance_from", [](auto& r) { r.set_guidance_from(-0.1); }, "guidance_from", "VALUE_OUT_OF_RANGE"},
      {"guidance_to",
       [](auto& r) {
         r.set_guidance_from(0.1);
         r.set_guidance_to(0);
       },
       "guidance_to", "VALUE_OUT_OF_RANGE"},
      {"negative_class", [](auto& r) { r.set_negative_class(10); }, "negative_class", "UNKNOWN_CLASS"},
      {"nucleus mode", [](auto& r) { r.set_mode(pb::SampleRequest::MODE_NUCLEUS); }, "nucleus_p", "VALUE_OUT_OF_RANGE"},
      {"nucleus_p", [](auto& r) { r.set_nucleus_p(1.1); }, "nucleus_p", "VALUE_OUT_OF_RANGE"},
      {"temperature", [](auto& r) { r.set_temperature(std::nan("")); }, "temperature", "VALUE_OUT_OF_RANGE"},
      {"temperature of oracle",
       [](auto& r) {
         r.set_oracle_expert(0);
         r.set_temperature(2);
       },
       "temperature", "MODE_MISMATCH"},
      {"oracle of nobody", [](auto& r) { r.set_mode(pb::SampleRequest::MODE_ORACLE); }, "oracle_expert",
       "UNKNOWN_EXPERT"},
      {"times", [](auto& r) { r.add_times(1); }, "times", "TIMES_COUNT"},
      {"many times", [](auto& r) { r.mutable_times()->Resize(100'000, 0.5); }, "times", "TIMES_COUNT"},
      {"init_images", [](auto& r) { r.add_init_images("no picture"); }, "init_images[0]", "INIT_IMAGE_UNREADABLE"},
      {"init_images count",
       [](auto& r) {
         for (int i = 0; i < 3; ++i) r.add_init_images("");
       },
       "init_images", "INIT_IMAGE_COUNT"},
      {"strength", [](auto& r) { r.set_strength(0); }, "strength", "STRENGTH_WITHOUT_IMAGE"},
      {"priority", [](auto& r) { r.set_priority(10); }, "priority", "VALUE_OUT_OF_RANGE"},
      {"previews", [](auto& r) { r.set_preview_every(-1); }, "preview_every", "VALUE_OUT_OF_RANGE"},
  };
  for (const BadCase& bad : cases) {
    pb::SampleRequest request = Asking({1, 2}, 3);
    bad.spoil(request);
    const absl::Status status = StatusOf(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.name;
    EXPECT_EQ(ErrorField(status), bad.field);
    EXPECT_EQ(ErrorReason(status), bad.reason);
  }
  pb::SampleRequest request = Asking({1}, 3);
  request.set_model("faces");
  EXPECT_EQ(ErrorReason(StatusOf(request)), "UNKNOWN_MODEL");
  EXPECT_TRUE(StatusOf(Asking({1}, 3)).ok());
}

TEST_F(SampleServiceTest, FieldsGoWithTheirModeAndImplyIt) {
  StartServer();
  engine_->Start();
  using Mode = pb::SampleRequest::Mode;
  const std::vector<std::pair<Mode, std::function<void(pb::SampleRequest&)>>> own = {
      {pb::SampleRequest::MODE_TOP_K, [](auto& r) { r.set_top_k(2); }},
      {pb::SampleRequest::MODE_THRESHOLD, [](auto& r) { r.set_threshold(0.25); }},
      {pb::SampleRequest::MODE_NUCLEUS, [](auto& r) { r.set_nucleus_p(0.5); }},
      {pb::SampleRequest::MODE_ORACLE, [](auto& r) { r.set_oracle_expert(0); }}};
  for (const auto& [mode, set] : own) {
    pb::SampleRequest request = Asking({1}, 3);
    set(request);
    EXPECT_TRUE(StatusOf(request).ok()) << "the mode is implied";
    for (int other = pb::SampleRequest::MODE_TOP_K; other <= pb::SampleRequest::Mode_MAX; ++other) {
      request.set_mode(static_cast<Mode>(other));
      const absl::Status status = StatusOf(request);
      EXPECT_EQ(ErrorReason(status), other == mode ? "" : "MODE_MISMATCH") << mode << " " << other;
    }
  }
  pb::SampleRequest request = Asking({1}, 3);
  request.set_mode(pb::SampleRequest::MODE_FULL);
  request.set_top_k(2);
  EXPECT_EQ(StatusOf(request).message(), "top_k: expected mode topk beside it, found mode full");
  request.set_mode(pb::SampleRequest::MODE_TOP_1);
  request.set_top_k(1);
  EXPECT_TRUE(StatusOf(request).ok());
}

TEST_F(SampleServiceTest, EveryChoiceOfTheSamplerReachesIt) {
  StartServer();
  engine_->Start();
  pb::SampleRequest request = Asking({1, 2}, 3);
  request.set_mode(pb::SampleRequest::MODE_NUCLEUS);
  request.set_nucleus_p(0.9);
  request.set_temperature(0.5);
  request.set_solver(pb::SampleRequest::SOLVER_MULTISTEP);
  request.set_steps(0);
  for (const double t : {0.5, 0.25, 0.0}) request.add_times(t);
  request.set_guidance_from(0.1);
  request.set_guidance_to(0.6);
  request.set_negative_class(3);
  request.set_format(pb::SampleRequest::FORMAT_RAW);
  request.add_init_images(std::string(kPixels * sizeof(float), 0));
  EXPECT_TRUE(StatusOf(request).ok()) << StatusOf(request);
  const SampleRequest asked = *FromProto(request, {});
  EXPECT_EQ(asked.routing,
            (RoutingRule{.mode = RoutingMode::kNucleus, .top_k = 0, .nucleus_p = 0.9, .temperature = 0.5}));
  EXPECT_EQ(asked.solver, Solver::kMultistep);
  EXPECT_EQ(asked.times, (std::vector<double>{0.5, 0.25, 0}));
  EXPECT_EQ(asked.guidance_from, 0.1);
  EXPECT_EQ(asked.guidance_to, 0.6);
  EXPECT_EQ(asked.negative_class, 3);
  ASSERT_EQ(asked.init_images.size(), 1u);
  EXPECT_EQ(*asked.init_images[0].pixels, std::vector<float>(kPixels, 0));
}

TEST_F(SampleServiceTest, WithoutAModelRequestsFailWithNoModel) {
  StartServer({}, /*with_model=*/false);
  const absl::Status status = StatusOf(Asking({1}, 3));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(status), "NO_MODEL");
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(20));
  pb::GetSamplerInfoResponse response;
  EXPECT_EQ(stub_->GetSamplerInfo(&context, {}, &response).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(SampleServiceTest, AFullQueueAnswersWithARetryDelay) {
  EngineOptions options;
  options.admission.max_queued_requests = 1;
  StartServer(options);
  Call waits(stub_.get(), Asking({0}, 3));
  AwaitWaiting(1);
  const grpc::Status refused = Call(stub_.get(), Asking({0}, 3)).Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ErrorReason(rpc::FromGrpc(refused)), "QUEUE_FULL");
  google::rpc::Status details;
  ASSERT_TRUE(grpc::ExtractErrorDetails(refused, &details).ok());
  google::rpc::RetryInfo retry;
  ASSERT_EQ(details.details_size(), 2);
  ASSERT_TRUE(details.details(1).UnpackTo(&retry));
  EXPECT_GT(wire::FromProto(retry.retry_delay()), absl::ZeroDuration());
  RunAll();
  EXPECT_TRUE(waits.Finish().ok());
}

TEST_F(SampleServiceTest, InfoTellsWhatIsServedAndTheLimits) {
  StartServer();
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(20));
  pb::GetSamplerInfoResponse info;
  ASSERT_TRUE(stub_->GetSamplerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.model(), "digits");
  EXPECT_EQ(info.experts(), 4);
  EXPECT_EQ(info.classes(), 10);
  EXPECT_EQ(info.max_steps(), 250);
  EXPECT_EQ(info.max_images_per_request(), 1024);
  EXPECT_EQ(info.defaults().mode(), pb::SampleRequest::MODE_TOP_K);
  EXPECT_EQ(info.defaults().top_k(), 1);
  EXPECT_EQ(info.defaults().solver(), pb::SampleRequest::SOLVER_EULER);
  EXPECT_EQ(info.defaults().steps(), 30);
  EXPECT_EQ(info.defaults().guidance(), 2.0);
  EXPECT_THAT(info.versions(), ElementsAre("v1"));
  EXPECT_EQ(info.states_size(), 0);
}

TEST_F(SampleServiceTest, WhatBecameOfVersionsIsToldWhetherAnyServesOrNot) {
  const RouterVersions versions = {
      .versions = {{.model = "digits", .version = "v1", .state = VersionState::kServing, .requests = 2},
                   {.model = "digits",
                    .version = "v2",
                    .state = VersionState::kReady,
                    .wanted = true,
                    .weight_bytes = 500,
                    .own_weight_bytes = 100,
                    .waits_for = "1 of its 4 networks are on no expert server: expert 1"},
                   {.model = "letters", .version = "v9", .state = VersionState::kFailed, .waits_for = "damaged"}},
      .memory_budget_bytes = 1000};
  service_options_.versions = [versions] { return versions; };
  StartServer({}, /*with_model=*/false);
  const std::string message(StatusOf(Asking({0}, 1)).message());
  EXPECT_THAT(message, HasSubstr("no model version is served yet"));
  EXPECT_THAT(message,
              HasSubstr("; model 'digits' version 'v2': 1 of its 4 networks are on no expert server: expert 1"));
  EXPECT_THAT(message, HasSubstr("; model 'letters' version 'v9': damaged"));
  EXPECT_THAT(message, ::testing::Not(HasSubstr("version 'v1'")));
  TearDown();
  StartServer();
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(20));
  pb::GetSamplerInfoResponse info;
  ASSERT_TRUE(stub_->GetSamplerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.memory_budget_bytes(), 1000);
  ASSERT_EQ(info.states_size(), 2);
  EXPECT_EQ(info.states(0).state(), pb::RouterVersion::STATE_SERVING);
  EXPECT_EQ(info.states(0).requests(), 2);
  EXPECT_EQ(info.states(1).state(), pb::RouterVersion::STATE_WAITING);
  EXPECT_TRUE(info.states(1).wanted());
  EXPECT_EQ(info.states(1).weight_bytes(), 500);
  EXPECT_EQ(info.states(1).own_weight_bytes(), 100);
  EXPECT_EQ(info.states(1).waits_for(), versions.versions[1].waits_for);
}

}  // namespace
}  // namespace atl::router
