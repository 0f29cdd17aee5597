// A rank against leaders that end its stream, over real streams in one process.
#include "worker/island/rendezvous_client.h"

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>

#include "common/base/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "worker/attempt/fake_training.h"

namespace atl::worker {
namespace {

namespace pb = atlpb::island::v1;

// Welcomes every rank and ends its stream at its first beat.
class ShortLeader final : public pb::RendezvousService::CallbackService {
 public:
  int streams() const { return streams_; }

 private:
  class Stream final : public grpc::ServerBidiReactor<pb::JoinRequest, pb::JoinResponse> {
   public:
    explicit Stream(std::atomic<int>* streams) : streams_(streams) {
      welcome_.mutable_welcome()->set_incarnation(1);
      StartRead(&request_);
    }

   private:
    void OnReadDone(bool ok) override {
      if (!ok || request_.has_beat()) return Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the leader ends"));
      StartWrite(&welcome_);
    }
    void OnWriteDone(bool ok) override { StartRead(&request_); }
    void OnDone() override {
      ++*streams_;
      delete this;
    }

    std::atomic<int>* const streams_;
    pb::JoinRequest request_;
    pb::JoinResponse welcome_;
  };

  grpc::ServerBidiReactor<pb::JoinRequest, pb::JoinResponse>* Join(grpc::CallbackServerContext*) override {
    return new Stream(&streams_);
  }

  std::atomic<int> streams_ = 0;
};

// gRPC frees a stream whose reads and writes are over: a beat that starts meanwhile must not touch it.
TEST(RendezvousClientTest, BeatsMayMeetTheEndOfTheStream) {
  constexpr int kStreams = 3000;
  ShortLeader leader;
  const std::string name = pb::RendezvousService::service_full_name();
  const auto server = *rpc::Server::Start({.services = {{name, &leader}}});
  std::string folder = testing::TempDir() + "/rendezvousXXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const auto store = *storage::BlobStore::Open("file://" + folder);
  const auto registry = metrics::Registry::Create("worker");
  WorkerMetrics metrics(registry.get());
  FakeTraining training;
  RendezvousClient client({.leader = server->address(),
                           .beat_interval = absl::Microseconds(20),
                           .silence_timeout = absl::Seconds(30),
                           .retry_delay = absl::ZeroDuration()},
                          Clock::Real(), &metrics);
  RankRunner runner(FakeParts(&training, store.get(), &metrics),
                    [&](pb::JoinRequest report) { client.Send(std::move(report)); });
  std::thread rank([&] { static_cast<void>(client.Run(&runner)); });
  const absl::Time deadline = absl::Now() + absl::Minutes(2);
  while (leader.streams() < kStreams && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_GE(leader.streams(), kStreams);
  client.Stop({.reason = "the test is over", .deadline = Clock::Real()->Monotonic()});
  rank.join();
  server->Shutdown(absl::ZeroDuration());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace atl::worker
