#include "tests/multiproc/cluster.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "absl/random/random.h"
#include "common/dataset/testing.h"
#include "common/rpc/channel.h"
#include "common/wire/spec_wire.h"

namespace atl::testing_cluster {
namespace {

namespace pb = atlpb::job::v1;

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "cluster: %s\n", message.c_str());
  std::abort();
}

// The address that a process wrote to its port file; `known`, where it had one before, if it ended first.
std::string AwaitAddress(const std::string& path, Process* process, const std::string& known = "") {
  std::string address;
  const bool there = Await(absl::Seconds(30), [&] {
    std::ifstream(path) >> address;
    return !address.empty() || !process->Running();
  });
  if (there && address.empty() && !known.empty()) return known;
  if (!there || address.empty()) Die(fmt::format("no address in {}; its process said:\n{}", path, process->Log()));
  return address;
}

}  // namespace

std::string Program(const std::string& name) {
  const char* build = std::getenv("ATOLL_BINARY_DIR");
  // Started by hand: the test lies in <build>/tests.
  const std::filesystem::path folder =
      build != nullptr ? std::filesystem::path(build)
                       : std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
  const std::string path = folder / "bin" / name;
  if (!std::filesystem::exists(path)) Die(fmt::format("{} is not built", path));
  return path;
}

Cluster::Cluster(ClusterOptions options) : options_(std::move(options)) {
  folder_ = testing::TempDir() + "atoll_cluster_XXXXXX";
  if (mkdtemp(folder_.data()) == nullptr) Die("no temporary folder");
  std::filesystem::create_directories(folder_ + "/logs");
  std::ofstream(folder_ + "/secret") << fmt::format("{:016x}", absl::Uniform<uint64_t>(absl::BitGen()));
  blob_store_ = options_.blob_store.empty() ? "file://" + folder_ + "/blobs" : options_.blob_store;
  auto store = storage::BlobStore::Open(blob_store_);
  if (!store.ok()) Die(store.status().ToString());
  store_ = *std::move(store);
  StartCoordinator();
  leaders_.resize(options_.islands);
  ranks_.resize(options_.islands);
  for (int island = 0; island < options_.islands; ++island) {
    ranks_[island].resize(options_.ranks);
    for (int rank = 0; rank < options_.ranks; ++rank) StartRank(island, rank, options_.worker_environment);
  }
}

Cluster::~Cluster() {
  router_.reset();
  ranks_.clear();
  coordinator_.reset();
  if (testing::Test::HasFailure()) {
    std::fprintf(stderr, "%s\nlogs and state stay in %s\n", Logs().c_str(), folder_.c_str());
    return;
  }
  std::filesystem::remove_all(folder_);
}

void Cluster::StartCoordinator(const std::vector<std::string>& environment) {
  coordinator_.reset();
  const std::string port_file = folder_ + "/coordinator.address";
  std::filesystem::remove(port_file);
  std::vector<std::string> command = {Program("atoll-coordinator"),
                                      "--listen",
                                      coordinator_address_.empty() ? "127.0.0.1:0" : coordinator_address_,
                                      "--port-file",
                                      port_file,
                                      "--store",
                                      folder_ + "/coordinator.db",
                                      "--blob-store",
                                      blob_store_};
  command.insert(command.end(), options_.coordinator_flags.begin(), options_.coordinator_flags.end());
  coordinator_ = std::make_unique<Process>(command, folder_ + "/logs/coordinator.log", environment);
  coordinator_address_ = AwaitAddress(port_file, coordinator_.get(), coordinator_address_);
  if (jobs_ == nullptr) jobs_ = pb::JobService::NewStub(rpc::MakeChannel(coordinator_address_, options_.credentials));
}

std::vector<std::string> Cluster::RankCommand(int island, int rank) const {
  const std::string coordinator =
      options_.coordinator_of ? options_.coordinator_of(island, coordinator_address_) : coordinator_address_;
  std::string leader = leaders_[island].empty() ? "127.0.0.1:0" : leaders_[island];
  if (rank != 0 && options_.leader_of) leader = options_.leader_of(island, leader);
  std::vector<std::string> command = {Program("atoll-worker"),
                                      "--coordinator",
                                      coordinator,
                                      "--blob-store",
                                      blob_store_,
                                      "--island-id",
                                      fmt::format("island-{}", island),
                                      "--rank",
                                      fmt::format("{}", rank),
                                      "--ranks",
                                      fmt::format("{}", options_.ranks),
                                      "--leader",
                                      leader,
                                      "--island-secret-file",
                                      folder_ + "/secret",
                                      "--threads",
                                      "1"};
  if (rank == 0) {
    command.insert(command.end(), {"--port-file", fmt::format("{}/island-{}.address", folder_, island)});
  }
  command.insert(command.end(), options_.worker_flags.begin(), options_.worker_flags.end());
  return command;
}

void Cluster::StartRank(int island, int rank, const std::vector<std::string>& environment) {
  ranks_[island][rank].reset();
  const std::string port_file = fmt::format("{}/island-{}.address", folder_, island);
  if (rank == 0) std::filesystem::remove(port_file);
  ranks_[island][rank] = std::make_unique<Process>(
      RankCommand(island, rank), fmt::format("{}/logs/island-{}-{}.log", folder_, island, rank), environment);
  if (rank == 0) leaders_[island] = AwaitAddress(port_file, ranks_[island][0].get(), leaders_[island]);
}

void Cluster::StartIsland(int island) {
  for (int rank = 0; rank < options_.ranks; ++rank) StartRank(island, rank);
}

void Cluster::KillIsland(int island) {
  for (auto& rank : ranks_[island]) rank->Signal(SIGKILL);
  for (auto& rank : ranks_[island]) rank->Kill();
}

std::string Cluster::StartRouter() {
  const std::string port_file = folder_ + "/router.address";
  std::vector<std::string> command = {Program("atoll-router"),
                                      "--coordinator",
                                      coordinator_address_,
                                      "--blob-store",
                                      blob_store_,
                                      "--listen",
                                      "127.0.0.1:0",
                                      "--port-file",
                                      port_file,
                                      "--threads",
                                      "1"};
  command.insert(command.end(), options_.router_flags.begin(), options_.router_flags.end());
  router_ = std::make_unique<Process>(command, folder_ + "/logs/router.log");
  return AwaitAddress(port_file, router_.get());
}

void Cluster::WriteDataset(int shards) {
  dataset::DatasetManifest manifest{.name = "patterns", .channels = 1, .height = 8, .width = 8};
  for (int label = 0; label < 10; ++label) manifest.classes.push_back(fmt::format("{}", label));
  for (int shard = 0; shard < shards; ++shard) {
    manifest.shards.push_back(dataset::WritePatternShard(
        store_.get(), fmt::format("datasets/patterns/train-{}.parquet", shard), 64, 64 * shard));
  }
  const auto written = store_->Write(dataset::DatasetManifestUri(*store_, "patterns"), dataset::ToJson(manifest));
  if (!written.ok()) Die(written.status().ToString());
}

std::string Cluster::Submit(const spec::JobSpec& spec) {
  pb::SubmitJobRequest request;
  wire::ToProto(spec, request.mutable_spec());
  absl::BitGen random;
  request.set_request_id(fmt::format("{:08x}-0000-4000-8000-{:012x}", absl::Uniform<uint32_t>(random),
                                     absl::Uniform<uint64_t>(random) >> 16));
  pb::SubmitJobResponse response;
  grpc::Status status;
  // A coordinator that was started again breaks the calls of its earlier connection; the id makes the two submits one.
  Await(absl::Seconds(30), [&] {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(10), /*wait_for_ready=*/true);
    status = jobs_->SubmitJob(&context, request, &response);
    return status.error_code() != grpc::StatusCode::UNAVAILABLE;
  });
  if (!status.ok()) Die("submit: " + status.error_message());
  return response.job().job_id();
}

pb::Job Cluster::GetJob(const std::string& job_id) {
  pb::GetJobRequest request;
  request.set_job_id(job_id);
  pb::GetJobResponse response;
  grpc::Status status;
  // A coordinator that was killed breaks the calls of its connection.
  const bool answered = Await(absl::Seconds(30), [&] {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(10), /*wait_for_ready=*/true);
    status = jobs_->GetJob(&context, request, &response);
    return status.ok();
  });
  if (!answered) Die("get job: " + status.error_message());
  return response.job();
}

bool Cluster::AwaitJob(const std::string& job_id, absl::Duration timeout,
                       const std::function<bool(const pb::Job&)>& condition) {
  bool held = false;
  pb::Job job;
  const bool ended = Await(timeout, [&] {
    job = GetJob(job_id);
    held = condition(job);
    return held || job.state() == pb::Job::STATE_FAILED || job.state() == pb::Job::STATE_CANCELLED;
  });
  if (!held) std::fprintf(stderr, "cluster: %s: %s\n", ended ? "the job ended" : "timeout", job.DebugString().c_str());
  return held;
}

bool Cluster::AwaitSuccess(const std::string& job_id, absl::Duration timeout) {
  return AwaitJob(job_id, timeout, [](const pb::Job& job) { return job.state() == pb::Job::STATE_SUCCEEDED; });
}

storage::CheckpointReader Cluster::FinalCheckpoint(const std::string& job_id, int expert) {
  const pb::Job job = GetJob(job_id);
  for (const pb::Artifact& artifact : TaskOf(job, pb::TASK_KIND_TRAIN_EXPERT, expert).outputs()) {
    if (artifact.name() != "checkpoint") continue;
    auto reader = storage::CheckpointReader::Open(store_.get(), artifact.uri(), artifact.sha256());
    if (!reader.ok()) Die(reader.status().ToString());
    return *std::move(reader);
  }
  Die(fmt::format("job {} has no checkpoint of expert {}", job_id, expert));
}

std::string Cluster::Logs() {
  std::string all;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/logs")) {
    std::ifstream file(entry.path());
    std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    constexpr size_t kShown = 6000;
    if (text.size() > kShown) text = "...\n" + text.substr(text.size() - kShown);
    all += fmt::format("---- {}\n{}", entry.path().filename().string(), text);
  }
  return all;
}

const pb::Task& TaskOf(const pb::Job& job, pb::TaskKind kind, int index) {
  static const pb::Task kNone;
  for (const pb::Task& task : job.tasks()) {
    if (task.kind() == kind && task.index() == index) return task;
  }
  return kNone;
}

spec::JobSpec SmallJob(int experts, int steps, int checkpoint_every) {
  spec::JobSpec spec;
  spec.model_name = "small";
  spec.dataset = "patterns";
  spec.experts = experts;
  spec.seed = 7;
  spec.clustering.method = "random";
  spec.model = {.patch = 2, .width = 32, .depth = 2, .heads = 2, .mlp_ratio = 2.0};
  spec.training.steps = steps;
  spec.training.batch_size = 8;
  spec.training.checkpoint_every = checkpoint_every;
  spec.training.warmup_steps = 5;
  spec.pipeline.micro_batches = 4;
  spec.router_model = spec.model;
  spec.router_training = spec.training;
  spec.router_training.steps = 4;
  spec.router_training.warmup_steps = 0;
  return spec;
}

spec::JobSpec MediumJob(int steps, int checkpoint_every) {
  spec::JobSpec spec = SmallJob(1, steps, checkpoint_every);
  spec.model = {.patch = 2, .width = 96, .depth = 4, .heads = 4, .mlp_ratio = 4.0};
  spec.training.batch_size = 32;
  spec.router_training.batch_size = 8;
  return spec;
}

std::string TensorDifference(const storage::CheckpointReader& a, const storage::CheckpointReader& b) {
  for (const auto& [name, tensor] : a.tensors()) {
    const auto other = b.tensors().find(name);
    if (other == b.tensors().end()) return name + " is in the first only";
    if (tensor.shape != other->second.shape || tensor.dtype != other->second.dtype) return name + " has another shape";
    if (tensor.bytes != other->second.bytes) return name + " differs";
  }
  return a.tensors().size() == b.tensors().size() ? "" : "the second has more tensors";
}

}  // namespace atl::testing_cluster
