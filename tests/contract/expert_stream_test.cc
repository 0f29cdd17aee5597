// Expert servers from a router's view, over loopback: the real service, the real lane, and lanes behind them that
// answer when the test says so.
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "atoll/expert/v1/expert_service.grpc.pb.h"
#include "common/base/clock.h"
#include "common/base/errors.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/wire/status.h"
#include "common/wire/status_proto.h"
#include "expert_server/expert_service.h"
#include "expert_server/fake_lane.h"
#include "gtest/gtest.h"
#include "router/engine/testing/fake_backend.h"
#include "router/engine/testing/inline_lane.h"
#include "router/remote/expert_client.h"
#include "router/remote/expert_wire.h"

namespace atl {
namespace {

namespace pb = atlpb::expert::v1;

using router::Evaluation;
using router::EvaluationAnswer;
using router::ExpertLane;
using router::HostedNetwork;
using router::RemoteLane;
using worker::ExpertService;
using worker::FakeLane;

constexpr absl::Duration kPatience = absl::Seconds(30);

NetworkId Expert(int32_t expert, const std::string& digest = "d1") {
  return {.model = "m", .version = "v1", .digest = digest, .expert = expert};
}

// A server over `lanes`, which says that everything they host is ready.
class ServedLanes {
 public:
  explicit ServedLanes(std::vector<std::shared_ptr<ExpertLane>> lanes, const std::string& listen = "127.0.0.1:0",
                       worker::ExpertServiceOptions options = {})
      : service_(
            options, lanes, [lanes] { return HostingOf(lanes); }, Clock::Real()) {
    server_ = rpc::Server::Start({.listen = listen, .services = {{pb::ExpertService::service_full_name(), &service_}}})
                  .value();
    server_->SetServing(true);
  }
  ~ServedLanes() { server_->Shutdown(absl::ZeroDuration()); }

  const std::string& address() const { return server_->address(); }

 private:
  static worker::Hosting HostingOf(const std::vector<std::shared_ptr<ExpertLane>>& lanes) {
    worker::Hosting hosting{.fingerprint = lanes[0]->info().fingerprint};
    std::map<NetworkId, bool> networks;
    for (const auto& lane : lanes) {
      for (const HostedNetwork& network : *lane->hosted()) networks[network.id] = true;
    }
    for (const auto& [id, ready] : networks) {
      hosting.networks.push_back({.network = id, .state = placement::NetworkState::kReady});
    }
    return hosting;
  }

  ExpertService service_;
  std::unique_ptr<rpc::Server> server_;
};

std::shared_ptr<FakeLane> MakeFake(std::vector<HostedNetwork> hosted = {{.id = Expert(0)}, {.id = Expert(1)}}) {
  return std::make_shared<FakeLane>(router::LaneInfo{.name = "fake", .fingerprint = "f1"}, std::move(hosted));
}

router::RemoteLaneOptions Quick(const std::string& address) {
  return {.address = address,
          .list_interval = absl::Milliseconds(20),
          .backoff = {.first = absl::Milliseconds(20), .longest = absl::Milliseconds(100)}};
}

std::shared_ptr<const Evaluation> Batch(int64_t id, const NetworkId& network, int64_t rows = 1,
                                        absl::Duration deadline = absl::InfiniteDuration()) {
  auto batch = std::make_shared<Evaluation>();
  batch->id = id;
  batch->network = network;
  batch->channels = 1;
  batch->height = 2;
  batch->width = 2;
  batch->deadline = deadline;
  batch->rows.count = rows;
  for (int64_t i = 0; i < rows * 4; ++i) batch->rows.x.push_back(static_cast<float>(id) + 0.01f * i);
  batch->rows.t.assign(rows, 0.25f);
  for (int64_t i = 0; i < rows; ++i) batch->rows.classes.push_back(i % 3);
  return batch;
}

// One Start, and its one answer.
class Asked {
 public:
  Asked(ExpertLane* lane, std::shared_ptr<const Evaluation> batch) {
    lane->Start(std::move(batch), [state = state_](absl::StatusOr<EvaluationAnswer> answer) {
      ASSERT_FALSE(state->done.HasBeenNotified()) << "answered twice";
      state->answer = std::move(answer);
      state->done.Notify();
    });
  }
  bool answered() const { return state_->done.HasBeenNotified(); }
  absl::StatusOr<EvaluationAnswer> Take() {
    if (!state_->done.WaitForNotificationWithTimeout(kPatience)) return absl::UnknownError("never answered");
    return state_->answer;
  }

 private:
  struct State {
    absl::Notification done;
    absl::StatusOr<EvaluationAnswer> answer;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Waits for what a lane hosts, by its own news.
class Hosted {
 public:
  explicit Hosted(RemoteLane* lane) : lane_(lane) {
    lane->Watch([this] {
      const size_t count = lane_->hosted()->size();
      absl::MutexLock lock(&mutex_);
      count_ = count;
    });
    const size_t count = lane->hosted()->size();
    absl::MutexLock lock(&mutex_);
    if (count > 0) count_ = count;
  }
  ~Hosted() { lane_->Watch(nullptr); }
  bool Await(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return count_ == count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&reached), kPatience);
  }

 private:
  RemoteLane* const lane_;
  absl::Mutex mutex_;
  size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST(ExpertStream, ARemoteLaneAnswersAsTheLaneBehindTheServer) {
  const router::SamplerInfo info{
      .model = "m", .version = "v1", .experts = 2, .classes = 3, .channels = 1, .height = 2, .width = 2};
  auto backend = std::make_shared<router::FakeBackend>(info);
  backend->velocity = [](int32_t expert, std::span<const float> x, float t, int64_t class_row) {
    std::vector<float> velocity(x.begin(), x.end());
    for (float& value : velocity) value = value * t + 10.0f * expert + static_cast<float>(class_row);
    return velocity;
  };
  const auto local = std::make_shared<router::InlineLane>(router::LaneInfo{.name = "local", .fingerprint = "f"},
                                                          backend, "d1", Clock::Real());
  const ServedLanes server({local});
  RemoteLane remote(Quick(server.address()), Clock::Real());
  ASSERT_TRUE(Hosted(&remote).Await(3));
  EXPECT_EQ(*remote.hosted(), *local->hosted());
  EXPECT_EQ(remote.info(), (router::LaneInfo{.name = server.address(),
                                             .remote = true,
                                             .slots = 2,
                                             .max_batch_values = router::kMaxBatchValues,
                                             .fingerprint = "f"}));

  for (const int32_t expert : {kRouterNetwork, 0, 1}) {
    for (const bool guided : {false, true}) {
      if (guided && expert == kRouterNetwork) continue;
      // Large enough to come in many pieces.
      auto batch = std::make_shared<Evaluation>(*Batch(5, Expert(expert), 5000));
      if (guided) batch->rows.null_classes.assign(5000, 3);
      const auto expected = Asked(local.get(), batch).Take();
      const auto found = Asked(&remote, batch).Take();
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_EQ(found->values, expected->values) << expert << guided;
      EXPECT_EQ(found->fingerprint, "f");
    }
  }
}

TEST(ExpertStream, EverythingThatABatchSaysArrives) {
  const auto fake = MakeFake();
  const ServedLanes server({fake});
  RemoteLane remote(Quick(server.address()), Clock::Real());
  ASSERT_TRUE(Hosted(&remote).Await(2));
  auto batch = std::make_shared<Evaluation>(*Batch(5, Expert(1), 2, Clock::Real()->Monotonic() + absl::Hours(1)));
  batch->reproducible = true;
  batch->rows.estimate = {1, 2, 3, 4, 5, 6, 7, 8};
  batch->rows.null_classes = {3, 4};
  Asked asked(&remote, batch);
  ASSERT_TRUE(fake->AwaitHeld(1));
  const auto seen = fake->oldest();
  EXPECT_EQ(seen->network, batch->network);
  EXPECT_EQ(std::vector<int32_t>({seen->channels, seen->height, seen->width}), (std::vector<int32_t>{1, 2, 2}));
  EXPECT_TRUE(seen->reproducible);
  EXPECT_EQ(seen->rows.count, 2);
  EXPECT_EQ(seen->rows.x, batch->rows.x);
  EXPECT_EQ(seen->rows.estimate, batch->rows.estimate);
  EXPECT_EQ(seen->rows.t, batch->rows.t);
  EXPECT_EQ(seen->rows.classes, batch->rows.classes);
  EXPECT_EQ(seen->rows.null_classes, batch->rows.null_classes);
  EXPECT_LE(seen->deadline, batch->deadline + absl::Seconds(5));
  EXPECT_GE(seen->deadline, batch->deadline - absl::Minutes(30));
  fake->Answer(FieldError("t", "NETWORK_FAILED", "expected less"));
  const auto answer = asked.Take();
  EXPECT_EQ(ErrorReason(answer.status()), "NETWORK_FAILED");
  EXPECT_EQ(ErrorField(answer.status()), "t");
}

TEST(ExpertStream, AnswersComeInAnyOrder) {
  const auto a = MakeFake({{.id = Expert(0)}});
  const auto b = MakeFake({{.id = Expert(1)}});
  const ServedLanes server({a, b});
  RemoteLane remote(Quick(server.address()), Clock::Real());
  ASSERT_TRUE(Hosted(&remote).Await(2));
  Asked first(&remote, Batch(1, Expert(0)));
  Asked second(&remote, Batch(2, Expert(1)));
  ASSERT_TRUE(a->AwaitHeld(1));
  ASSERT_TRUE(b->AwaitHeld(1));
  b->Echo();
  EXPECT_EQ(second.Take()->values[0], 2);
  EXPECT_FALSE(first.answered());
  a->Echo();
  EXPECT_EQ(first.Take()->values[0], 1);
}

TEST(ExpertStream, NoServerComputedForLongerThanItsBatchTook) {
  const auto fake = MakeFake();
  const ServedLanes server({fake});
  RemoteLane remote(Quick(server.address()), Clock::Real());
  ASSERT_TRUE(Hosted(&remote).Await(2));
  for (const absl::Duration claimed : {absl::Hours(-1), absl::Hours(1)}) {
    Asked asked(&remote, Batch(1, Expert(0)));
    ASSERT_TRUE(fake->AwaitHeld(1));
    fake->Answer(EvaluationAnswer{.values = {1, 2, 3, 4}, .fingerprint = "f1", .compute_time = claimed});
    const auto answer = asked.Take();
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_GE(answer->compute_time, absl::ZeroDuration());
    EXPECT_LT(answer->compute_time, absl::Hours(1));
    EXPECT_GE(answer->queue_time, absl::ZeroDuration());
  }
}

TEST(ExpertStream, AnotherDigestIsNotHosted) {
  const auto fake = MakeFake();
  const ServedLanes server({fake});
  RemoteLane remote(Quick(server.address()), Clock::Real());
  ASSERT_TRUE(Hosted(&remote).Await(2));
  EXPECT_EQ(ErrorReason(Asked(&remote, Batch(1, Expert(0, "d2"))).Take().status()), "NETWORK_NOT_HOSTED");

  // The server checks for itself: a router may have old news.
  const auto stub = pb::ExpertService::NewStub(rpc::MakeChannel(server.address()));
  grpc::ClientContext context;
  rpc::SetTimeout(&context, kPatience);
  const auto stream = stub->Denoise(&context);
  pb::DenoiseRequest request;
  request.set_id(9);
  request.mutable_network()->set_model("m");
  request.mutable_network()->set_version("v1");
  request.mutable_network()->set_digest("d2");
  request.set_rows(1);
  request.set_channels(1);
  request.set_height(1);
  request.set_width(1);
  request.add_t(1);
  request.add_classes(0);
  request.set_x(std::string(4, '\0'));
  ASSERT_TRUE(stream->Write(request));
  pb::DenoiseResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.id(), 9);
  EXPECT_EQ(ErrorReason(rpc::FromProto(response.error())), "NETWORK_NOT_HOSTED");
  // So are shapes, before any lane sees them.
  request.mutable_network()->set_digest("d1");
  request.set_rows(2);
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(ErrorReason(rpc::FromProto(response.error())), "SHAPE_MISMATCH");
  stream->WritesDone();
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(fake->started(), 0);
}

TEST(ExpertStream, ACancelReachesTheLaneAndTheBatchIsStillAnswered) {
  const auto fake = MakeFake();
  const ServedLanes server({fake});
  RemoteLane remote(Quick(server.address()), Clock::Real());
  ASSERT_TRUE(Hosted(&remote).Await(2));
  Asked running(&remote, Batch(1, Expert(0)));
  Asked waiting(&remote, Batch(2, Expert(0)));
  ASSERT_TRUE(fake->AwaitHeld(1));
  remote.Cancel(2);
  EXPECT_TRUE(absl::IsCancelled(waiting.Take().status()));
  remote.Cancel(1);
  ASSERT_TRUE(fake->AwaitCancelled(1));
  EXPECT_FALSE(running.answered());
  fake->Echo();
  EXPECT_TRUE(running.Take().ok());
  EXPECT_EQ(fake->started(), 1);
}

TEST(ExpertStream, ABatchWhoseDeadlinePassesIsAnsweredAndCancelled) {
  const auto fake = MakeFake();
  const ServedLanes server({fake});
  RemoteLane remote(Quick(server.address()), Clock::Real());
  ASSERT_TRUE(Hosted(&remote).Await(2));
  Asked patient(&remote, Batch(1, Expert(0)));
  ASSERT_TRUE(fake->AwaitHeld(1));
  Asked asked(&remote, Batch(2, Expert(0), 1, Clock::Real()->Monotonic() + absl::Milliseconds(50)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(asked.Take().status()));
  fake->Echo();
  EXPECT_TRUE(patient.Take().ok());
  // The late one has left the server's queue: the next batch runs at once.
  Asked next(&remote, Batch(3, Expert(0)));
  ASSERT_TRUE(fake->AwaitHeld(1));
  while (fake->oldest()->rows.x[0] != 3) {
    fake->Echo();
    ASSERT_TRUE(fake->AwaitHeld(1));
  }
  fake->Echo();
  EXPECT_EQ(next.Take()->values[0], 3);
}

TEST(ExpertStream, AServerThatGoesAnswersEverythingAndIsFoundAgain) {
  const auto fake = MakeFake();
  auto server = std::make_unique<ServedLanes>(std::vector<std::shared_ptr<ExpertLane>>{fake});
  const std::string address = server->address();
  RemoteLane remote(Quick(address), Clock::Real());
  Hosted hosted(&remote);
  ASSERT_TRUE(hosted.Await(2));
  Asked running(&remote, Batch(1, Expert(0)));
  Asked waiting(&remote, Batch(2, Expert(0)));
  ASSERT_TRUE(fake->AwaitHeld(1));
  std::thread end([&] { server.reset(); });
  EXPECT_EQ(ErrorReason(running.Take().status()), "EXPERT_SERVER_LOST");
  EXPECT_EQ(ErrorReason(waiting.Take().status()), "EXPERT_SERVER_LOST");
  EXPECT_TRUE(hosted.Await(0));
  EXPECT_EQ(ErrorReason(Asked(&remote, Batch(3, Expert(0))).Take().status()), "EXPERT_SERVER_LOST");
  // The server waits for what its lane still runs.
  ASSERT_TRUE(fake->AwaitCancelled(1));
  fake->AnswerAll(absl::CancelledError(""));
  end.join();

  const auto other = MakeFake({{.id = Expert(1)}});
  const ServedLanes again({other}, address);
  ASSERT_TRUE(hosted.Await(1));
  Asked asked(&remote, Batch(4, Expert(1)));
  ASSERT_TRUE(other->AwaitHeld(1));
  other->Echo();
  EXPECT_EQ(asked.Take()->values[0], 4);
}

TEST(ExpertStream, ABatchAsLargeAsTheLaneSaysArrivesAndOneBeyondIsRefused) {
  const auto fake = MakeFake();
  const ServedLanes server({fake});
  RemoteLane remote(Quick(server.address()), Clock::Real());
  ASSERT_TRUE(Hosted(&remote).Await(2));
  auto batch = std::make_shared<Evaluation>(*Batch(1, Expert(0)));
  batch->width = static_cast<int32_t>(remote.info().max_batch_values / 2);
  batch->height = 1;
  batch->rows.x.assign(batch->width, 0.5f);
  batch->rows.null_classes = {1};
  Asked largest(&remote, batch);
  ASSERT_TRUE(fake->AwaitHeld(1));
  fake->Answer(EvaluationAnswer{.values = std::vector<float>(remote.info().max_batch_values, 2)});
  const auto answer = largest.Take();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->values.size(), static_cast<size_t>(remote.info().max_batch_values));

  auto beyond = std::make_shared<Evaluation>(*batch);
  beyond->rows.x.push_back(0);
  EXPECT_EQ(ErrorReason(Asked(&remote, beyond).Take().status()), "BATCH_TOO_LARGE");
}

TEST(ExpertStream, NewNetworksAreNoticed) {
  const auto fake = MakeFake({{.id = Expert(0)}});
  const ServedLanes server({fake});
  RemoteLane remote(Quick(server.address()), Clock::Real());
  Hosted hosted(&remote);
  ASSERT_TRUE(hosted.Await(1));
  const auto before = remote.hosted();
  EXPECT_EQ(remote.hosted(), before);
  fake->SetHosted({{.id = Expert(0)}, {.id = Expert(1)}, {.id = Expert(2)}});
  ASSERT_TRUE(hosted.Await(3));
  EXPECT_NE(remote.hosted(), before);
}

TEST(ExpertStream, ALaneThatEndsAnswersWhatIsUnderWay) {
  const auto fake = MakeFake();
  const ServedLanes server({fake});
  auto remote = std::make_unique<RemoteLane>(Quick(server.address()), Clock::Real());
  ASSERT_TRUE(Hosted(remote.get()).Await(2));
  Asked asked(remote.get(), Batch(1, Expert(0)));
  ASSERT_TRUE(fake->AwaitHeld(1));
  remote.reset();
  EXPECT_TRUE(asked.answered());
  EXPECT_EQ(ErrorReason(asked.Take().status()), "EXPERT_SERVER_LOST");
  // The server learns that the call was cancelled.
  EXPECT_TRUE(fake->AwaitCancelled(1));
  fake->AnswerAll(absl::CancelledError(""));
}

TEST(ExpertStream, ALaneWithoutAServerHostsNothingAndEnds) {
  RemoteLane remote(Quick("127.0.0.1:1"), Clock::Real());
  EXPECT_TRUE(remote.hosted()->empty());
  EXPECT_EQ(ErrorReason(Asked(&remote, Batch(1, Expert(0))).Take().status()), "EXPERT_SERVER_LOST");
}

pb::DenoiseRequest Request(int64_t id, size_t values) {
  pb::DenoiseRequest request;
  request.set_id(id);
  request.mutable_network()->set_model("m");
  request.mutable_network()->set_version("v1");
  request.mutable_network()->set_digest("d1");
  request.set_rows(1);
  request.set_channels(1);
  request.set_height(1);
  request.set_width(static_cast<int32_t>(values));
  request.add_t(1);
  request.add_classes(0);
  request.set_x(std::string(values * sizeof(float), '\0'));
  return request;
}

// Answers all that comes, until it ends.
class Echoes {
 public:
  explicit Echoes(FakeLane* lane)
      : thread_([this, lane] {
          while (!over_.HasBeenNotified()) {
            if (lane->AwaitHeld(1, absl::Milliseconds(20))) lane->Echo();
          }
        }) {}
  ~Echoes() {
    over_.Notify();
    thread_.join();
  }

 private:
  absl::Notification over_;
  std::thread thread_;
};

TEST(ExpertStream, ARouterThatDoesNotReadIsHeldBack) {
  const auto fake = MakeFake();
  const ServedLanes server({fake}, "127.0.0.1:0", {.spare_frames = 2});
  const auto stub = pb::ExpertService::NewStub(rpc::MakeChannel(server.address()));
  grpc::ClientContext context;
  const auto stream = stub->Denoise(&context);
  // Many times what a connection's buffers hold.
  constexpr int kBatches = 100;
  std::thread writer([&] {
    for (int id = 1; id <= kBatches; ++id) ASSERT_TRUE(stream->Write(Request(id, 1 << 18)));
    stream->WritesDone();
  });
  {
    const Echoes echoes(fake.get());
    // Every batch that is read is answered at once, and still the reading stops.
    int64_t before = -1;
    while (fake->started() != before) {
      before = fake->started();
      fake->AwaitStarted(before + 1, absl::Milliseconds(500));
    }
    EXPECT_LT(fake->started(), kBatches);
    pb::DenoiseResponse response;
    for (int id = 1; id <= kBatches; ++id) {
      ASSERT_TRUE(stream->Read(&response));
      EXPECT_EQ(response.id(), id);
      EXPECT_EQ(response.values().size(), size_t{4} << 18);
    }
    EXPECT_FALSE(stream->Read(&response));
  }
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(fake->started(), kBatches);
}

TEST(ExpertStream, WhatIsNoRequestEndsTheStream) {
  const auto fake = MakeFake();
  const ServedLanes server({fake});
  const auto channel = rpc::MakeChannel(server.address());
  const auto stub = pb::ExpertService::NewStub(channel);
  {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, kPatience);
    const auto stream = stub->Denoise(&context);
    ASSERT_TRUE(stream->Write(Request(5, 4)));
    ASSERT_TRUE(stream->Write(Request(5, 4)));
    pb::DenoiseResponse response;
    EXPECT_FALSE(stream->Read(&response));
    EXPECT_EQ(ErrorReason(rpc::FromGrpc(stream->Finish())), "DUPLICATE_BATCH");
    ASSERT_TRUE(fake->AwaitCancelled(1));
    fake->Echo();
  }
  pb::DenoiseRequest odd = Request(6, 4);
  odd.set_x("odd");
  grpc::ClientContext context;
  rpc::SetTimeout(&context, kPatience);
  const auto stream = stub->Denoise(&context);
  ASSERT_TRUE(stream->Write(odd));
  pb::DenoiseResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(ErrorReason(rpc::FromGrpc(stream->Finish())), "MALFORMED_MESSAGE");
}

TEST(ExpertStream, MoreStreamsThanAllowedAreRefused) {
  const auto fake = MakeFake();
  const ServedLanes server({fake}, "127.0.0.1:0", {.max_streams = 1});
  const auto stub = pb::ExpertService::NewStub(rpc::MakeChannel(server.address()));
  grpc::ClientContext first_context;
  rpc::SetTimeout(&first_context, kPatience);
  const auto first = stub->Denoise(&first_context);
  ASSERT_TRUE(first->Write(Request(1, 4)));
  ASSERT_TRUE(fake->AwaitHeld(1));
  grpc::ClientContext context;
  rpc::SetTimeout(&context, kPatience);
  EXPECT_EQ(ErrorReason(rpc::FromGrpc(stub->Denoise(&context)->Finish())), "TOO_MANY_STREAMS");
  fake->Echo();
  first->WritesDone();
  pb::DenoiseResponse response;
  EXPECT_TRUE(first->Read(&response));
  EXPECT_TRUE(first->Finish().ok());
}

}  // namespace
}  // namespace atl
