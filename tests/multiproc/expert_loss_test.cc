// An expert server is killed, stopped, or loses its packets one way, under load, with a second replica of every
// network: no request fails and none hangs. What the loss costs in latency is printed, not judged: the machine may be
// busy.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/base/errors.h"
#include "common/storage/blob_store.h"
#include "fmt/format.h"
#include "gtest/gtest.h"
#include "inference/testing/published_tiny_model.h"
#include "inference/version_files.h"
#include "router/engine/engine.h"
#include "router/engine/sampler_info.h"
#include "router/remote/expert_client.h"
#include "tests/multiproc/one_way_proxy.h"
#include "tests/multiproc/process.h"

namespace atl {
namespace {

using testing_cluster::Await;
using testing_cluster::Direction;
using testing_cluster::OneWayProxy;
using testing_cluster::Process;

// No claim: for what only has to happen at all.
constexpr absl::Duration kPatience = absl::Minutes(2);
constexpr absl::Duration kPhase = absl::Seconds(4);

// The outcome of one request, and its time.
class Outcome : public router::SampleEvents {
 public:
  explicit Outcome(absl::Duration arrived) : arrived_(arrived) {}

  void OnQueued(int64_t /*position*/, const std::string& /*version*/) override {}
  void OnProgress(int32_t step, int32_t /*total_steps*/) override {
    absl::MutexLock lock(&mutex_);
    step_ = step;
  }
  void OnImage(router::SampledImage image) override {
    absl::MutexLock lock(&mutex_);
    images_[image.index] = std::move(image.data);
  }
  void OnDone(const router::SampleReport& report) override {
    absl::MutexLock lock(&mutex_);
    failovers_ = report.routing.failovers;
    fingerprint_ = report.fingerprint;
    End();
  }
  void OnError(const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    status_ = status;
    End();
  }

  bool over() const {
    absl::MutexLock lock(&mutex_);
    return over_;
  }
  absl::Status status() const {
    absl::MutexLock lock(&mutex_);
    return status_;
  }
  absl::Duration latency() const {
    absl::MutexLock lock(&mutex_);
    return latency_;
  }
  int64_t failovers() const {
    absl::MutexLock lock(&mutex_);
    return failovers_;
  }
  std::string fingerprint() const {
    absl::MutexLock lock(&mutex_);
    return fingerprint_;
  }
  int32_t step() const {
    absl::MutexLock lock(&mutex_);
    return step_;
  }
  // By index; raw.
  std::map<int32_t, std::string> images() const {
    absl::MutexLock lock(&mutex_);
    return images_;
  }

 private:
  void End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    over_ = true;
    latency_ = Clock::Real()->Monotonic() - arrived_;
  }

  const absl::Duration arrived_;
  mutable absl::Mutex mutex_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t failovers_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string fingerprint_ ABSL_GUARDED_BY(mutex_);
  int32_t step_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int32_t, std::string> images_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  absl::Duration latency_ ABSL_GUARDED_BY(mutex_);
};

// Thread-safe.
class Counted : public router::EngineObserver {
 public:
  void OnBatch(const router::BatchStats& /*stats*/) override { ++batches; }
  void OnFailover(const router::FailoverStats& stats) override {
    if (!stats.lost) ++retries;
  }
  void OnImageStep(const std::string& /*model*/, absl::Duration /*duration*/) override {}
  void OnQueue(const router::QueueStats& /*stats*/) override {}
  void OnRequestEnd(const router::RequestStats& /*stats*/) override {}
  void OnRejected(const std::string& /*model*/, absl::StatusCode /*code*/) override {}

  std::atomic<int64_t> batches = 0;
  std::atomic<int64_t> retries = 0;
};

class ExpertLossTest : public testing::Test {
 protected:
  struct Sent {
    std::shared_ptr<Outcome> outcome;
    std::unique_ptr<router::SampleTicket> ticket;
  };

  ExpertLossTest() {
    char pattern[] = "/tmp/atoll_expert_loss_XXXXXX";
    folder_ = mkdtemp(pattern);
    store_ = storage::BlobStore::Open("file://" + folder_ + "/model").value();
    router::PublishTinyModel(store_.get(), store_->root());
    const auto files = router::OpenVersion(store_.get(), store_->root(), "").value();
    for (const std::string name : {"a", "b"}) {
      servers_.push_back(StartServer(name));
      proxies_.push_back(std::make_unique<OneWayProxy>(port_));
      lanes_.push_back(std::make_shared<router::RemoteLane>(
          router::RemoteLaneOptions{.address = proxies_.back()->address(), .name = name}, Clock::Real()));
    }
    // Both host the three experts and the router network.
    EXPECT_TRUE(Await(kPatience, [&] { return lanes_[0]->hosted()->size() == 4 && lanes_[1]->hosted()->size() == 4; }))
        << servers_[0]->Log() << servers_[1]->Log();
    for (const auto& lane : lanes_) engine_.AddLane(lane);
    engine_.Serve(router::ServedOf(files));
    engine_.Start();
  }
  ~ExpertLossTest() override {
    engine_.Stop();
    lanes_.clear();
    proxies_.clear();
    servers_.clear();
    std::filesystem::remove_all(folder_);
  }

  std::unique_ptr<Process> StartServer(const std::string& name) {
    const std::string port_file = folder_ + "/" + name + ".port";
    const char* const binaries = std::getenv("ATOLL_BINARY_DIR");
    auto process = std::make_unique<Process>(
        std::vector<std::string>{std::string(binaries) + "/bin/atoll-worker", "--serve", "--model-dir",
                                 folder_ + "/model", "--experts", "0,1,2,router", "--listen", "127.0.0.1:0",
                                 "--port-file", port_file},
        folder_ + "/" + name + ".log", std::vector<std::string>{"OMP_NUM_THREADS=1"});
    EXPECT_TRUE(Await(kPatience, [&] { return std::filesystem::exists(port_file) || !process->Running(); }));
    std::string address;
    std::ifstream(port_file) >> address;
    EXPECT_FALSE(address.empty()) << process->Log();
    port_ = address.empty() ? 1 : std::stoi(address.substr(address.rfind(':') + 1));
    return process;
  }

  Sent Send() {
    router::SampleRequest request{.classes = {sent_ % 4}, .seeds = {static_cast<uint64_t>(sent_)}, .steps = 8};
    ++sent_;
    request.routing = {.mode = router::RoutingMode::kTopK, .top_k = 2};
    return Send(request);
  }
  Sent Send(router::SampleRequest request) {
    request.format = router::ImageFormat::kRaw;
    Sent sent{.outcome = std::make_shared<Outcome>(Clock::Real()->Monotonic())};
    auto ticket = engine_.Submit(request, absl::InfiniteDuration(), sent.outcome);
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    if (ticket.ok()) sent.ticket = *std::move(ticket);
    return sent;
  }
  // One request every `interval`, whatever became of those before. `fault` comes in their midst, while some are under
  // way.
  std::vector<Sent> SendFor(absl::Duration time, absl::Duration interval, std::function<void()> fault = nullptr) {
    std::vector<Sent> sent;
    size_t taken = 0;
    Clock* const clock = Clock::Real();
    const absl::Duration start = clock->Monotonic();
    absl::Mutex mutex;
    const bool never = false;
    for (absl::Duration at = start; at < start + time; at += interval) {
      absl::MutexLock lock(&mutex);
      clock->AwaitUntil(&mutex, absl::Condition(&never), at);
      sent.push_back(Send());
      if (fault && at >= start + time / 4) std::exchange(fault, nullptr)();
      // As a caller would who has taken its images: those that nobody took hold their place.
      for (; taken < sent.size() && sent[taken].outcome->over(); ++taken) sent[taken].ticket.reset();
    }
    return sent;
  }
  void ExpectAllDone(std::vector<Sent>* sent) {
    ASSERT_TRUE(Await(kPatience, [&] {
      return std::all_of(sent->begin(), sent->end(), [](const Sent& entry) { return entry.outcome->over(); });
    })) << "a request hangs";
    for (Sent& entry : *sent) {
      EXPECT_TRUE(entry.outcome->status().ok()) << entry.outcome->status();
      entry.ticket.reset();
    }
  }
  // Sixteen at a time: the interval at which requests are finished.
  absl::Duration SaturatedInterval() {
    const absl::Duration start = Clock::Real()->Monotonic();
    int finished = 0;
    while (Clock::Real()->Monotonic() - start < absl::Seconds(2)) {
      std::vector<Sent> sent;
      for (int i = 0; i < 16; ++i) sent.push_back(Send());
      ExpectAllDone(&sent);
      finished += 16;
    }
    return (Clock::Real()->Monotonic() - start) / finished;
  }
  static absl::Duration P99(const std::vector<Sent>& sent) {
    std::vector<absl::Duration> latencies;
    for (const Sent& entry : sent) latencies.push_back(entry.outcome->latency());
    const auto place = latencies.begin() + static_cast<std::ptrdiff_t>(latencies.size() * 99 / 100);
    std::nth_element(latencies.begin(), place, latencies.end());
    return *place;
  }

  static absl::Duration Worst(const std::vector<Sent>& sent) {
    absl::Duration worst;
    for (const Sent& entry : sent) worst = std::max(worst, entry.outcome->latency());
    return worst;
  }

  // Half of what saturates both servers, before, during and after the fault.
  void LoseAServer(const std::string& how, const std::function<void()>& fault, const std::function<void()>& end) {
    const absl::Duration interval = std::max(2 * SaturatedInterval(), absl::Milliseconds(5));
    std::vector<Sent> before = SendFor(kPhase, interval);
    ExpectAllDone(&before);
    const int64_t batches = counted_.batches;
    const int64_t again = counted_.retries;
    std::vector<Sent> during = SendFor(kPhase, interval, fault);
    ExpectAllDone(&during);
    const int64_t taken = counted_.retries - again;
    end();
    std::vector<Sent> after = SendFor(kPhase, interval);
    ExpectAllDone(&after);
    int64_t failovers = 0;
    for (const Sent& entry : during) failovers += entry.outcome->failovers();
    fmt::print(
        "{}: a request every {}; p99 and worst before {} {}, during {} {}, after {} {}; {} batches, {} retries, "
        "{} evaluations taken over\n",
        how, absl::FormatDuration(interval), absl::FormatDuration(P99(before)), absl::FormatDuration(Worst(before)),
        absl::FormatDuration(P99(during)), absl::FormatDuration(Worst(during)), absl::FormatDuration(P99(after)),
        absl::FormatDuration(Worst(after)), counted_.batches - batches, taken, failovers);
    // Counts calls that were running at the loss, and occasional probes whether the server answers again.
    EXPECT_LE(taken, (counted_.batches - batches) / 10 + 16 + absl::ToInt64Seconds(kPhase) + 1);
  }

  std::string folder_;
  int port_ = 0;
  int sent_ = 0;
  std::unique_ptr<storage::BlobStore> store_;
  std::vector<std::unique_ptr<Process>> servers_;
  std::vector<std::unique_ptr<OneWayProxy>> proxies_;
  std::vector<std::shared_ptr<router::RemoteLane>> lanes_;
  Counted counted_;
  router::Engine engine_{{}, Clock::Real(), &counted_};
};

TEST_F(ExpertLossTest, NoRequestFailsWhenAServerIsKilled) {
  LoseAServer(
      "SIGKILL", [&] { servers_[0]->Kill(); }, [] {});
}

TEST_F(ExpertLossTest, NoRequestFailsWhenAServerIsStopped) {
  LoseAServer(
      "SIGSTOP", [&] { servers_[0]->Signal(SIGSTOP); }, [&] { servers_[0]->Signal(SIGCONT); });
}

TEST_F(ExpertLossTest, NoRequestFailsWhenAServersAnswersAreLost) {
  LoseAServer(
      "answers lost", [&] { proxies_[0]->Cut(Direction::kToClient); }, [&] { proxies_[0]->Heal(); });
}

TEST_F(ExpertLossTest, NoRequestFailsWhenAServersQuestionsAreLost) {
  LoseAServer(
      "questions lost", [&] { proxies_[0]->Cut(Direction::kToServer); }, [&] { proxies_[0]->Heal(); });
}

TEST_F(ExpertLossTest, AReproducibleRequestEndsWithTheSameBytesWhenAServerIsKilledInItsMidst) {
  router::SampleRequest request{
      .seeds = {7}, .routing = {.mode = router::RoutingMode::kTopK, .top_k = 2}, .steps = 250};
  for (int32_t i = 0; i < 16; ++i) request.classes.push_back(i % 4);
  request.reproducible = true;
  std::vector<Sent> undisturbed;
  undisturbed.push_back(Send(request));
  ExpectAllDone(&undisturbed);
  std::vector<Sent> disturbed;
  disturbed.push_back(Send(request));
  // Beside others that are not reproducible.
  for (int i = 0; i < 8; ++i) disturbed.push_back(Send());
  const Outcome& outcome = *disturbed[0].outcome;
  ASSERT_TRUE(Await(kPatience, [&] { return outcome.step() >= 10; }));
  servers_[0]->Kill();
  const int32_t killed_at = outcome.step();
  EXPECT_LT(killed_at, 250);
  ExpectAllDone(&disturbed);
  EXPECT_EQ(outcome.images().size(), 16U);
  EXPECT_EQ(outcome.images(), undisturbed[0].outcome->images());
  EXPECT_NE(outcome.fingerprint(), "");
  EXPECT_EQ(outcome.fingerprint(), undisturbed[0].outcome->fingerprint());
  fmt::print("killed at step {} of 250; {} evaluations taken over\n", killed_at, outcome.failovers());
}

TEST_F(ExpertLossTest, WithBothServersGoneRequestsEndWithTheNameOfWhatIsLost) {
  std::vector<Sent> warm = SendFor(absl::Seconds(1), absl::Milliseconds(50));
  ExpectAllDone(&warm);
  std::vector<Sent> sent = SendFor(absl::Seconds(1), absl::Milliseconds(50));
  servers_[0]->Kill();
  servers_[1]->Signal(SIGSTOP);
  for (Sent& entry : SendFor(absl::Seconds(1), absl::Milliseconds(50))) sent.push_back(std::move(entry));
  ASSERT_TRUE(Await(kPatience, [&] {
    return std::all_of(sent.begin(), sent.end(), [](const Sent& entry) { return entry.outcome->over(); });
  })) << "a request hangs";
  EXPECT_EQ(ErrorReason(sent.back().outcome->status()), "EXPERT_LOST") << sent.back().outcome->status();
  EXPECT_TRUE(absl::StrContains(sent.back().outcome->status().message(), "of model 'tiny' version 'v1'"));
}

}  // namespace
}  // namespace atl
