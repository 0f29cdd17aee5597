// `atoll-worker --serve` as a process: what it answers is what the same networks answer in this process, bit for bit,
// and a server that was killed and started again is found again.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "atoll/sample/v1/sample_service.grpc.pb.h"
#include "common/base/clock.h"
#include "common/base/counter_random.h"
#include "common/base/errors.h"
#include "common/rpc/channel.h"
#include "common/storage/blob_store.h"
#include "common/wire/status.h"
#include "gtest/gtest.h"
#include "inference/local/local_experts.h"
#include "inference/testing/published_tiny_model.h"
#include "router/remote/expert_client.h"
#include "tests/multiproc/process.h"

namespace atl {
namespace {

using router::Evaluation;
using router::EvaluationAnswer;
using router::ExpertLane;
using testing_cluster::Await;
using testing_cluster::Process;

constexpr absl::Duration kPatience = absl::Minutes(1);

absl::StatusOr<EvaluationAnswer> Ask(ExpertLane* lane, std::shared_ptr<const Evaluation> batch) {
  struct State {
    absl::Notification done;
    absl::StatusOr<EvaluationAnswer> answer;
  };
  const auto state = std::make_shared<State>();
  lane->Start(std::move(batch), [state](absl::StatusOr<EvaluationAnswer> answer) {
    state->answer = std::move(answer);
    state->done.Notify();
  });
  if (!state->done.WaitForNotificationWithTimeout(kPatience)) return absl::UnknownError("never answered");
  return state->answer;
}

class ExpertServerTest : public testing::Test {
 protected:
  ExpertServerTest() {
    char pattern[] = "/tmp/atoll_expert_server_XXXXXX";
    folder_ = mkdtemp(pattern);
    store_ = storage::BlobStore::Open("file://" + folder_ + "/model").value();
    router::PublishTinyModel(store_.get(), store_->root());
  }
  ~ExpertServerTest() override { std::filesystem::remove_all(folder_); }

  // Waits for its address.
  std::unique_ptr<Process> StartServer(const std::string& name, const std::string& experts, std::string* address) {
    const std::string port_file = folder_ + "/" + name + ".port";
    std::filesystem::remove(port_file);
    const char* const binaries = std::getenv("ATOLL_BINARY_DIR");
    auto process = std::make_unique<Process>(
        std::vector<std::string>{std::string(binaries) + "/bin/atoll-worker", "--serve", "--model-dir",
                                 folder_ + "/model", "--experts", experts, "--listen",
                                 address->empty() ? "127.0.0.1:0" : *address, "--port-file", port_file},
        folder_ + "/" + name + ".log", std::vector<std::string>{"OMP_NUM_THREADS=1"});
    EXPECT_TRUE(Await(kPatience, [&] { return std::filesystem::exists(port_file) || !process->Running(); }));
    std::ifstream(port_file) >> *address;
    EXPECT_FALSE(address->empty()) << process->Log();
    return process;
  }

  std::unique_ptr<Process> StartRouter(const std::string& name, const std::vector<std::string>& flags,
                                       std::string* address) {
    const std::string port_file = folder_ + "/" + name + ".port";
    std::vector<std::string> command = {std::string(std::getenv("ATOLL_BINARY_DIR")) + "/bin/atoll-router",
                                        "--model-dir",
                                        folder_ + "/model",
                                        "--threads",
                                        "1",
                                        "--port-file",
                                        port_file};
    command.insert(command.end(), flags.begin(), flags.end());
    auto process = std::make_unique<Process>(command, folder_ + "/" + name + ".log",
                                             std::vector<std::string>{"OMP_NUM_THREADS=1"});
    EXPECT_TRUE(Await(kPatience, [&] { return std::filesystem::exists(port_file) || !process->Running(); }));
    std::ifstream(port_file) >> *address;
    EXPECT_FALSE(address->empty()) << process->Log();
    return process;
  }

  // The floats of one image: alone in its batches, whose shapes are then the same everywhere.
  absl::StatusOr<std::string> SampleOne(const std::string& address, int32_t label, int32_t oracle = -1) {
    namespace pb = atlpb::sample::v1;
    const auto stub = pb::SampleService::NewStub(rpc::MakeChannel(address));
    grpc::ClientContext context;
    rpc::SetTimeout(&context, kPatience);
    pb::SampleRequest request;
    request.add_classes(label);
    request.add_seeds(11);
    request.set_steps(6);
    request.set_mode(oracle < 0 ? pb::SampleRequest::MODE_FULL : pb::SampleRequest::MODE_ORACLE);
    if (oracle >= 0) request.set_oracle_expert(oracle);
    request.set_format(pb::SampleRequest::FORMAT_RAW);
    const auto reader = stub->Sample(&context, request);
    pb::SampleResponse event;
    std::string image;
    while (reader->Read(&event)) {
      if (event.has_image()) image = event.image().data();
    }
    const absl::Status status = rpc::FromGrpc(reader->Finish());
    if (!status.ok()) return status;
    return image;
  }

  std::shared_ptr<const Evaluation> Batch(const NetworkId& network, bool guided) {
    auto batch = std::make_shared<Evaluation>();
    batch->id = ++last_batch_;
    batch->network = network;
    batch->channels = 1;
    batch->height = 4;
    batch->width = 4;
    batch->reproducible = true;
    batch->rows.count = 5;
    batch->rows.x.resize(5 * 16);
    CounterRandom(/*seed=*/7, RandomPurpose::kSampleNoise, /*step=*/0, /*sample=*/0).Normal(batch->rows.x);
    batch->rows.t = {1.0f, 0.9f, 0.5f, 0.3f, 0.1f};
    batch->rows.classes = {0, 1, 2, 3, 4};
    if (guided) batch->rows.null_classes.assign(5, 4);
    return batch;
  }

  std::string folder_;
  std::unique_ptr<storage::BlobStore> store_;
  int64_t last_batch_ = 0;
};

TEST_F(ExpertServerTest, TwoServersAnswerAsThisProcessAndOneComesBack) {
  std::string a_address;
  std::string b_address;
  std::unique_ptr<Process> a = StartServer("a", "0,1", &a_address);
  std::unique_ptr<Process> b = StartServer("b", "2,router", &b_address);
  router::RemoteLane a_lane({.address = a_address, .list_interval = absl::Milliseconds(50)}, Clock::Real());
  router::RemoteLane b_lane({.address = b_address, .list_interval = absl::Milliseconds(50)}, Clock::Real());
  ASSERT_TRUE(Await(kPatience, [&] { return a_lane.hosted()->size() == 2 && b_lane.hosted()->size() == 2; }))
      << a->Log() << b->Log();

  const auto files = router::OpenVersion(store_.get(), store_->root(), "").value();
  const auto local = router::LocalExperts::Create({}, Clock::Real()).value();
  const auto hosted = local->Host(files).value();
  for (const int32_t expert : {kRouterNetwork, 0, 1, 2}) {
    ExpertLane* const remote = expert == 0 || expert == 1 ? &a_lane : &b_lane;
    for (const bool guided : {false, true}) {
      if (guided && expert == kRouterNetwork) continue;
      const auto batch = Batch(hosted->network(expert), guided);
      const auto expected = Ask(local->lanes()[0].get(), batch);
      const auto found = Ask(remote, batch);
      ASSERT_TRUE(expected.ok()) << expected.status();
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_EQ(found->values, expected->values) << expert;
      EXPECT_EQ(found->fingerprint, expected->fingerprint);
    }
  }
  // Networks that only the other server hosts, another version's weights, and rows of another shape are rejected.
  EXPECT_EQ(ErrorReason(Ask(&a_lane, Batch(hosted->network(2), false)).status()), "NETWORK_NOT_HOSTED");
  NetworkId other = hosted->network(0);
  other.digest = std::string(64, '0');
  EXPECT_EQ(ErrorReason(Ask(&a_lane, Batch(other, false)).status()), "NETWORK_NOT_HOSTED");

  a->Kill();
  EXPECT_TRUE(Await(kPatience, [&] { return a_lane.hosted()->empty(); }));
  EXPECT_EQ(ErrorReason(Ask(&a_lane, Batch(hosted->network(0), false)).status()), "EXPERT_SERVER_LOST");
  a = StartServer("a", "1", &a_address);
  EXPECT_TRUE(Await(kPatience, [&] { return a_lane.hosted()->size() == 1; })) << a->Log();
  EXPECT_TRUE(Ask(&a_lane, Batch(hosted->network(1), false)).ok());

  for (Process* process : {a.get(), b.get()}) {
    process->Signal(SIGTERM);
    EXPECT_EQ(process->Wait(kPatience), 0) << process->Log();
  }
}

TEST_F(ExpertServerTest, ARouterWithTwoServersSamplesAsOneThatIsAlone) {
  std::string a_address;
  std::string b_address;
  const std::unique_ptr<Process> a = StartServer("a", "0,1", &a_address);
  std::unique_ptr<Process> b = StartServer("b", "2,router", &b_address);
  std::string alone_address;
  std::string remote_address;
  std::string bare_address;
  const std::vector<std::string> servers = {"--expert-server", a_address, "--expert-server", b_address};
  const std::unique_ptr<Process> alone = StartRouter("alone", {}, &alone_address);
  const std::unique_ptr<Process> remote = StartRouter("remote", servers, &remote_address);
  std::vector<std::string> bare_flags = servers;
  bare_flags.insert(bare_flags.end(), {"--own-networks", "none"});
  const std::unique_ptr<Process> bare = StartRouter("bare", bare_flags, &bare_address);
  for (const int32_t label : {-1, 0, 1, 2, 3}) {
    const std::string expected = SampleOne(alone_address, label).value();
    EXPECT_EQ(expected.size(), 16 * sizeof(float));
    EXPECT_EQ(SampleOne(remote_address, label).value(), expected) << label;
    EXPECT_EQ(SampleOne(bare_address, label).value(), expected) << label;
  }
  EXPECT_NE(SampleOne(remote_address, 1).value(), SampleOne(remote_address, 2).value());

  // Without its server an expert is lost, and the error says which; with it again all is well.
  b->Kill();
  const absl::Status lost = SampleOne(remote_address, 3, /*oracle=*/2).status();
  EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
  EXPECT_NE(lost.message().find("expert 2"), std::string::npos) << lost;
  b = StartServer("b", "2,router", &b_address);
  EXPECT_TRUE(Await(kPatience, [&] { return SampleOne(remote_address, 3, /*oracle=*/2).ok(); })) << b->Log();
}

TEST_F(ExpertServerTest, WhatCannotBeServedIsSaid) {
  const std::string worker = std::string(std::getenv("ATOLL_BINARY_DIR")) + "/bin/atoll-worker";
  const auto refused = [&](std::vector<std::string> flags, int code, const std::string& said) {
    flags.insert(flags.begin(), {worker, "--serve"});
    Process process(flags, folder_ + "/refused.log");
    EXPECT_EQ(process.Wait(kPatience), code) << said;
    EXPECT_NE(process.Log().find(said), std::string::npos) << process.Log();
  };
  refused({}, 2, "--model-dir");
  refused({"--model-dir", folder_ + "/nothing"}, 1, "expected the folder");
  refused({"--model-dir", folder_ + "/model", "--experts", "0,7"}, 2, "expected experts of model 'tiny' from 0 to 2");
  refused({"--model-dir", folder_ + "/model", "--experts", "first"}, 2, "found 'first'");
  // A file that was changed after it was published.
  std::ofstream(folder_ + "/model/expert_1/diffusion_pytorch_model.safetensors", std::ios::app) << "x";
  refused({"--model-dir", folder_ + "/model", "--experts", "1"}, 1, "expert_1");
}

}  // namespace
}  // namespace atl
