// A router process under more load than it can handle, with callers that leave. It lives, its memory is bounded,
// rejections carry a retry delay, accepted requests finish, and abandoned requests release their place. Durations are
// printed, not judged: the machine may be busy.
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "atoll/sample/v1/sample_service.grpc.pb.h"
#include "common/rpc/channel.h"
#include "common/storage/blob_store.h"
#include "common/wire/status.h"
#include "fmt/format.h"
#include "gtest/gtest.h"
#include "inference/testing/published_tiny_model.h"
#include "tests/bench/arrivals.h"
#include "tests/bench/open_loop.h"
#include "tests/multiproc/process.h"

namespace atl {
namespace {

namespace pb = atlpb::sample::v1;

using testing_cluster::Await;
using testing_cluster::Process;

constexpr absl::Duration kPatience = absl::Minutes(2);
constexpr int64_t kMiB = 1 << 20;
// Beyond what it had: thread caches, gRPC's buffers of many calls at a time.
constexpr int64_t kMemoryAllowance = 128 * kMiB;

int64_t ResidentBytes(const Process& process) {
  int64_t pages = 0;
  int64_t resident = 0;
  std::ifstream(fmt::format("/proc/{}/statm", process.pid())) >> pages >> resident;
  return resident * 4096;
}

class RouterLoadTest : public testing::Test {
 protected:
  RouterLoadTest() {
    char pattern[] = "/tmp/atoll_router_load_XXXXXX";
    folder_ = mkdtemp(pattern);
    const auto store = storage::BlobStore::Open("file://" + folder_ + "/model").value();
    router::PublishTinyModel(store.get(), store->root());
    const std::string port_file = folder_ + "/port";
    router_ = std::make_unique<Process>(
        std::vector<std::string>{Program("atoll-router"), "--model-dir", folder_ + "/model", "--threads", "2",
                                 "--max-images", "16", "--max-images-in-flight", "64", "--max-queued-requests", "16",
                                 "--port-file", port_file},
        folder_ + "/router.log", std::vector<std::string>{"OMP_NUM_THREADS=1"});
    EXPECT_TRUE(Await(kPatience, [&] { return std::filesystem::exists(port_file) || !router_->Running(); }));
    std::ifstream(port_file) >> address_;
    EXPECT_FALSE(address_.empty()) << router_->Log();
    stub_ = pb::SampleService::NewStub(rpc::MakeChannel(address_));
  }
  ~RouterLoadTest() override {
    stub_.reset();
    router_.reset();
    std::filesystem::remove_all(folder_);
  }

  static std::string Program(const std::string& name) {
    return std::string(std::getenv("ATOLL_BINARY_DIR")) + "/bin/" + name;
  }
  static pb::SampleRequest Request(int images, int steps) {
    pb::SampleRequest request;
    for (int i = 0; i < images; ++i) request.add_classes(i % 4);
    request.add_seeds(1);
    request.set_steps(steps);
    request.set_mode(pb::SampleRequest::MODE_TOP_1);
    request.set_format(pb::SampleRequest::FORMAT_RAW);
    return request;
  }
  bench::LoadFigures Drive(double per_second, absl::Duration time, uint64_t seed) {
    const auto arrivals = bench::PoissonArrivals(per_second, time, seed).value();
    return bench::Summarise(bench::DriveOpenLoop(
        stub_.get(), arrivals, [](size_t) { return Request(8, 50); }, kPatience,
        [&](int64_t, int64_t) { most_bytes_ = std::max(most_bytes_, ResidentBytes(*router_)); }));
  }
  // Returns how many images are in flight or queued, as the router reports them to a new request; -1 without an answer.
  int64_t ImagesAhead() {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, kPatience);
    const auto reader = stub_->Sample(&context, Request(1, 1));
    pb::SampleResponse event;
    const int64_t ahead = reader->Read(&event) && event.has_queued() ? event.queued().position() : -1;
    while (reader->Read(&event)) {
    }
    return reader->Finish().ok() ? ahead : -1;
  }

  std::string folder_;
  std::unique_ptr<Process> router_;
  std::string address_;
  std::unique_ptr<pb::SampleService::Stub> stub_;
  int64_t most_bytes_ = 0;
};

TEST_F(RouterLoadTest, TenTimesWhatItCanDoIsRefusedWithADelayAndWhatIsAcceptedIsDone) {
  // Far more than it can do: what is done is what it can.
  const bench::LoadFigures most = Drive(1000, absl::Seconds(2), /*seed=*/1);
  ASSERT_GT(most.done, 0) << most.failures.begin()->first;
  const double sustainable = most.images_per_second / 8;
  const bench::LoadFigures at_capacity = Drive(sustainable, absl::Seconds(3), /*seed=*/2);
  const int64_t bytes = std::max(most_bytes_, ResidentBytes(*router_));
  most_bytes_ = 0;
  const bench::LoadFigures over = Drive(10 * sustainable, absl::Seconds(4), /*seed=*/3);
  EXPECT_TRUE(router_->Running()) << router_->Log();
  fmt::print(
      "{:.0f} requests per second sustained; {} of {} done at that rate, p99 {}; at ten times it {} of {} done, p99 "
      "{}, "
      "{} refused, to come back in {} to {}; resident {} MiB before, {} at most\n",
      sustainable, at_capacity.done, at_capacity.requests, absl::FormatDuration(at_capacity.latency.p99), over.done,
      over.requests, absl::FormatDuration(over.latency.p99), over.refused, absl::FormatDuration(over.least_retry_delay),
      absl::FormatDuration(over.most_retry_delay), bytes / kMiB, most_bytes_ / kMiB);
  EXPECT_EQ(over.failed, 0) << over.failures.begin()->first;
  EXPECT_GT(over.done, 0);
  EXPECT_GT(over.refused, 0);
  EXPECT_EQ(over.refused_with_delay, over.refused);
  EXPECT_GT(over.least_retry_delay, absl::ZeroDuration());
  EXPECT_LT(most_bytes_, bytes + kMemoryAllowance);
  EXPECT_TRUE(Await(kPatience, [&] { return ImagesAhead() == 0; })) << "it serves as before";
}

TEST_F(RouterLoadTest, CallersThatLeaveGiveTheirPlaceAndTheirMemoryAway) {
  ASSERT_EQ(ImagesAhead(), 0);
  int64_t bytes = 0;
  constexpr int kRounds = 12;
  for (int round = 0; round < kRounds; ++round) {
    constexpr size_t kCallers = 8;  // of 16 images each: half of them queue
    std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
    std::vector<std::unique_ptr<grpc::ClientReader<pb::SampleResponse>>> readers;
    for (size_t i = 0; i < kCallers; ++i) {
      contexts.push_back(std::make_unique<grpc::ClientContext>());
      readers.push_back(stub_->Sample(contexts.back().get(), Request(16, 250)));
    }
    pb::SampleResponse event;
    ASSERT_TRUE(readers[0]->Read(&event) && event.has_queued());
    ASSERT_TRUE(readers[0]->Read(&event) && event.has_progress()) << "it is being sampled";
    EXPECT_LT(event.progress().step(), event.progress().total_steps());
    for (const auto& context : contexts) context->TryCancel();
    for (const auto& reader : readers) {
      while (reader->Read(&event)) {
      }
      EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
    }
    ASSERT_TRUE(Await(kPatience, [&] { return ImagesAhead() == 0; })) << "round " << round;
    if (round == kRounds / 3) bytes = ResidentBytes(*router_);
  }
  EXPECT_LT(ResidentBytes(*router_), bytes + kMemoryAllowance / 4);
}

TEST_F(RouterLoadTest, ACallerThatIsKilledLeavesToo) {
  for (int round = 0; round < 3; ++round) {
    Process caller({Program("atoll"), "sample", "--router", address_, "--class", "0", "--count", "10000", "--steps",
                    "250", "--out", fmt::format("{}/samples{}", folder_, round)},
                   fmt::format("{}/caller{}.log", folder_, round));
    ASSERT_TRUE(Await(kPatience, [&] { return ImagesAhead() >= 16 || !caller.Running(); })) << caller.Log();
    ASSERT_TRUE(caller.Running()) << caller.Log();
    caller.Kill();
    EXPECT_TRUE(Await(kPatience, [&] { return ImagesAhead() == 0; }));
  }
  EXPECT_TRUE(router_->Running());
}

}  // namespace
}  // namespace atl
