// Every RPC of every service, with valid and broken messages, against servers that live for the whole run: a
// coordinator, a router and an expert server with made-up models, and an island's leader.
//
// An input is a line "<service>/<method> [live] [thrice]", then the message's bytes. "live": tokens, names and ids that
// the message holds are replaced by ones that are valid now, so that calls come further than the first check. "thrice":
// the bytes are sent in three messages, to methods that take a stream.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/clock.h"
#include "atoll/admin/v1/admin_service.grpc.pb.h"
#include "atoll/expert/v1/expert_service.grpc.pb.h"
#include "atoll/island/v1/island_service.grpc.pb.h"
#include "atoll/island/v1/rendezvous_service.grpc.pb.h"
#include "atoll/job/v1/job_service.grpc.pb.h"
#include "atoll/model/v1/model_service.grpc.pb.h"
#include "atoll/sample/v1/sample_service.grpc.pb.h"
#include "atoll/serving/v1/serving_service.grpc.pb.h"
#include "common/base/errors.h"
#include "common/dataset/dataset.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "common/storage/blob_store.h"
#include "common/wire/status.h"
#include "coordinator/service/coordinator.h"
#include "expert_server/expert_service.h"
#include "expert_server/fake_lane.h"
#include "fmt/format.h"
#include "google/protobuf/dynamic_message.h"
#include "grpcpp/generic/generic_stub.h"
#include "router/engine/testing/fake_backend.h"
#include "router/engine/testing/serve_inline.h"
#include "router/service/sample_service.h"
#include "spdlog/spdlog.h"
#include "worker/island/island.h"

// The island here has no rank of its own, so that it calls none of these; what they need is LibTorch's.
namespace atl::worker {
void RankRunner::Handle(const atlpb::island::v1::JoinResponse&) {
  std::abort();
}
AttemptProgress RankRunner::progress() const {
  std::abort();
}
std::optional<RankRunner::OverdueAttempt> RankRunner::FindOverdue() const {
  std::abort();
}
}  // namespace atl::worker

namespace atl {
namespace {

namespace pb = google::protobuf;

constexpr char kIsland[] = "lagoon";
constexpr char kSecret[] = "reef";
// A call that must be answered at once, and one that may wait for something that never comes.
constexpr absl::Duration kAnswerTime = absl::Seconds(20);
constexpr absl::Duration kWaitTime = absl::Milliseconds(15);
constexpr int kMostAnswers = 4;
constexpr size_t kLongestMessage = 4200;
// Between two looks at what the calls left behind.
constexpr int kRefreshEvery = 64;
constexpr int kLookEvery = 1000;
// Resident bytes above those of the first look that are a leak: more than what sanitizers hold back of what was freed.
constexpr int64_t kMostGrowth = int64_t{768} << 20;

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "rpc_fuzz: %s\n", why.c_str());
  std::abort();
}

void Require(bool holds, const std::string& why) {
  if (!holds) Fail(why);
}

int64_t ResidentBytes() {
  int64_t all = 0;
  int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

struct Method {
  std::string name;  // "<service>/<method>"
  const pb::MethodDescriptor* descriptor = nullptr;
  std::shared_ptr<grpc::Channel> channel;
};

class Servers {
 public:
  Servers() {
    spdlog::set_level(spdlog::level::off);
    std::string folder = std::filesystem::exists("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path();
    folder_ = folder + "/atoll_rpc_fuzz_XXXXXX";
    Require(mkdtemp(folder_.data()) != nullptr, "no temporary folder");
    StartCoordinator();
    StartRouter();
    StartExpert();
    StartLeader();
    Refresh();
    idle_claims_ = WaitingClaims();
    idle_watches_ = Watches();
  }
  ~Servers() {
    engine_->Stop();
    for (const auto& server : servers_) server->Shutdown(absl::ZeroDuration());
    servers_.clear();
    island_.reset();
    expert_.reset();
    coordinator_.reset();
    std::filesystem::remove_all(folder_);
  }

  const std::vector<Method>& methods() const { return methods_; }

  // A token that is valid now, made anew where fuzzed calls ended the last one.
  void Refresh() {
    CancelOtherJobs();
    for (int attempt = 0; attempt < 3; ++attempt) {
      if (Register() && Claim()) return;
      Submit();
    }
  }

  // Every call has ended: nothing that they left may wait.
  void RequireIdle() {
    const absl::Time deadline = absl::Now() + kAnswerTime;
    while (WaitingClaims() != idle_claims_ || Watches() != idle_watches_ || expert_->streams() != 0) {
      Require(absl::Now() < deadline, fmt::format("{} claims, {} watches and {} streams outlive their calls",
                                                  WaitingClaims(), Watches(), expert_->streams()));
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

  // Replaces what only this coordinator knows.
  void MakeLive(pb::Message* message) {
    const pb::Reflection* reflection = message->GetReflection();
    if (message->GetDescriptor()->full_name() == atlpb::island::v1::LeaseToken::descriptor()->full_name()) {
      Require(message->ParseFromString(token_.SerializeAsString()), "a token that cannot be read");
      return;
    }
    for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
      const pb::FieldDescriptor* field = message->GetDescriptor()->field(i);
      if (field->is_repeated()) {
        if (field->cpp_type() != pb::FieldDescriptor::CPPTYPE_MESSAGE || field->is_map()) continue;
        for (int item = 0; item < reflection->FieldSize(*message, field); ++item) {
          MakeLive(reflection->MutableRepeatedMessage(message, field, item));
        }
      } else if (field->cpp_type() == pb::FieldDescriptor::CPPTYPE_MESSAGE) {
        if (reflection->HasField(*message, field) || field->name() == "token") {
          MakeLive(reflection->MutableMessage(message, field));
        }
      } else if (field->name() == "island_id") {
        reflection->SetString(message, field, kIsland);
      } else if (field->name() == "incarnation") {
        reflection->SetInt64(message, field, incarnation_);
      } else if (field->name() == "job_id") {
        reflection->SetString(message, field, job_id_);
      } else if (field->name() == "island_secret") {
        reflection->SetString(message, field, kSecret);
      } else if (field->name() == "build") {
        reflection->SetString(message, field, "b1");
      } else if (field->name() == "manifest_uri") {
        reflection->SetString(message, field, write_prefix_ + "/1-x/manifest.json");
      } else if (field->name() == "manifest_sha256") {
        reflection->SetString(message, field, std::string(64, 'a'));
      }
    }
  }

 private:
  // The methods of `service`, which is served at `address`.
  void Add(const char* service, const std::string& address) {
    const pb::ServiceDescriptor* descriptor = pb::DescriptorPool::generated_pool()->FindServiceByName(service);
    Require(descriptor != nullptr, fmt::format("no descriptor of {}", service));
    const auto channel = rpc::MakeChannel(address);
    for (int i = 0; i < descriptor->method_count(); ++i) {
      const pb::MethodDescriptor* method = descriptor->method(i);
      methods_.push_back({fmt::format("{}/{}", service, method->name()), method, channel});
    }
  }

  void StartCoordinator() {
    coordinator::CoordinatorOptions options;
    options.store = folder_ + "/store.db";
    options.blob_store = "file://" + folder_ + "/blobs";
    options.watch_interval = absl::Milliseconds(1);
    options.lease.lease_duration = absl::Hours(10);
    auto coordinator = coordinator::Coordinator::Start(std::move(options));
    Require(coordinator.ok(), coordinator.status().ToString());
    coordinator_ = *std::move(coordinator);
    auto blobs = storage::BlobStore::Open("file://" + folder_ + "/blobs");
    Require(blobs.ok(), blobs.status().ToString());
    dataset::DatasetManifest manifest{.name = "digits", .channels = 1, .height = 8, .width = 8, .classes = {"0", "1"}};
    manifest.shards = {{(*blobs)->UriOf("datasets/digits/0.parquet"), "train", 1000, 1, std::string(64, 'a')}};
    Require((*blobs)->Write(dataset::DatasetManifestUri(**blobs, "digits"), dataset::ToJson(manifest)).ok(), "dataset");
    const std::string& address = coordinator_->address();
    // Brings the messages of a service into this program that it may not serve yet.
    Require(atlpb::admin::v1::MoveTaskRequest::descriptor() != nullptr, "no admin messages");
    Add(atlpb::admin::v1::AdminService::service_full_name(), address);
    Add(atlpb::island::v1::IslandService::service_full_name(), address);
    Add(atlpb::job::v1::JobService::service_full_name(), address);
    Add(atlpb::model::v1::ModelService::service_full_name(), address);
    Add(atlpb::serving::v1::ServingService::service_full_name(), address);
    const auto channel = rpc::MakeChannel(address);
    islands_ = atlpb::island::v1::IslandService::NewStub(channel);
    jobs_ = atlpb::job::v1::JobService::NewStub(channel);
  }

  void Serve(const char* name, grpc::Service* service) {
    auto server = rpc::Server::Start({.services = {{name, service}}});
    Require(server.ok(), server.status().ToString());
    Add(name, (*server)->address());
    servers_.push_back(*std::move(server));
  }

  void StartRouter() {
    router::SamplerInfo info{.model = "digits", .version = "v1", .experts = 2, .classes = 2};
    info.channels = 1;
    info.height = info.width = 4;
    engine_ = std::make_unique<router::Engine>(router::EngineOptions{.limits = {.max_steps = 6, .max_images = 4}},
                                               Clock::Real(), nullptr);
    router::ServeInline(engine_.get(), std::make_shared<router::FakeBackend>(info), Clock::Real());
    engine_->Start();
    sampler_ = std::make_unique<router::SampleService>(engine_.get(), Clock::Real());
    Serve(atlpb::sample::v1::SampleService::service_full_name(), sampler_.get());
  }

  void StartExpert() {
    lane_ = std::make_shared<EchoLane>();
    expert_ = std::make_unique<worker::ExpertService>(
        worker::ExpertServiceOptions{}, std::vector<std::shared_ptr<router::ExpertLane>>{lane_},
        [] { return worker::Hosting{.fingerprint = "cpu"}; }, Clock::Real());
    Serve(atlpb::expert::v1::ExpertService::service_full_name(), expert_.get());
  }

  void StartLeader() {
    registry_ = metrics::Registry::Create("worker");
    worker_metrics_ = std::make_unique<worker::WorkerMetrics>(registry_.get());
    worker::IslandSettings settings{.state = {.ranks = 3, .build = "b1"}, .secret = kSecret};
    worker::IslandEvents events{.step_done = [](const auto&) {},
                                .stage_files = [](int32_t, const auto&) {},
                                .rank_profile = [](int32_t, const auto&) {},
                                .commit_time = [] { return absl::ZeroDuration(); },
                                .diverged = [](const auto&) {},
                                .hung = [](const absl::Status&) {}};
    island_ =
        std::make_unique<worker::Island>(std::move(settings), Clock::Real(), worker_metrics_.get(), std::move(events));
    Serve(atlpb::island::v1::RendezvousService::service_full_name(), island_.get());
  }

  // Answers what it is given with the same again.
  class EchoLane : public router::ExpertLane {
   public:
    router::LaneInfo info() const override { return {.name = "echo", .fingerprint = "cpu"}; }
    std::shared_ptr<const std::vector<router::HostedNetwork>> hosted() const override {
      return std::make_shared<const std::vector<router::HostedNetwork>>();
    }
    void Watch(std::function<void()>) override {}
    void Start(std::shared_ptr<const router::Evaluation> evaluation, Done done) override {
      done(router::EvaluationAnswer{.values = evaluation->rows.x, .fingerprint = "cpu"});
    }
    void Cancel(int64_t) override {}
  };

  template <typename Call>
  absl::Status Do(Call call) {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, kAnswerTime, /*wait_for_ready=*/true);
    return rpc::FromGrpc(call(&context));
  }

  bool Register() {
    atlpb::island::v1::RegisterIslandRequest request;
    request.set_island_id(kIsland);
    request.set_request_id("start");
    auto* capabilities = request.mutable_capabilities();
    capabilities->mutable_protocol()->set_min(1);
    capabilities->mutable_protocol()->set_max(1);
    capabilities->mutable_format()->set_min(1);
    capabilities->mutable_format()->set_max(1);
    capabilities->set_ranks(1);
    capabilities->set_device_kind("cpu");
    atlpb::island::v1::RegisterIslandResponse response;
    const absl::Status status =
        Do([&](grpc::ClientContext* context) { return islands_->RegisterIsland(context, request, &response); });
    Require(status.ok(), status.ToString());
    incarnation_ = response.incarnation();
    return true;
  }

  bool Claim() {
    atlpb::island::v1::ClaimTaskRequest request;
    request.set_island_id(kIsland);
    request.set_incarnation(incarnation_);
    atlpb::island::v1::ClaimTaskResponse response;
    const absl::Status status =
        Do([&](grpc::ClientContext* context) { return islands_->ClaimTask(context, request, &response); });
    Require(status.ok(), status.ToString());
    if (!response.has_grant()) return false;
    token_ = response.grant().token();
    job_id_ = response.grant().job_id();
    write_prefix_ = response.grant().storage().write_prefix();
    return true;
  }

  void Submit() {
    atlpb::job::v1::SubmitJobRequest request;
    request.mutable_spec()->set_model_name("digits");
    request.mutable_spec()->set_dataset("digits");
    request.mutable_spec()->set_experts(1);
    request.mutable_spec()->set_failure_budget(1000);
    request.mutable_spec()->mutable_features()->set_kind("pixels_pca");
    request.mutable_spec()->mutable_training()->set_steps(100);
    atlpb::job::v1::SubmitJobResponse response;
    const absl::Status status =
        Do([&](grpc::ClientContext* context) { return jobs_->SubmitJob(context, request, &response); });
    Require(status.ok(), status.ToString());
    job_id_ = response.job().job_id();
  }

  // Deletes the jobs that fuzzed calls submitted, because their memory would look like a leak.
  void CancelOtherJobs() {
    atlpb::job::v1::ListJobsRequest request;
    request.set_page_size(1000);
    atlpb::job::v1::ListJobsResponse response;
    const absl::Status status =
        Do([&](grpc::ClientContext* context) { return jobs_->ListJobs(context, request, &response); });
    Require(status.ok(), status.ToString());
    for (const atlpb::job::v1::Job& job : response.jobs()) {
      if (job.job_id() == job_id_) continue;
      atlpb::job::v1::CancelJobRequest cancel;
      cancel.set_job_id(job.job_id());
      atlpb::job::v1::CancelJobResponse cancelled;
      (void)Do([&](grpc::ClientContext* context) { return jobs_->CancelJob(context, cancel, &cancelled); });
      atlpb::job::v1::DeleteJobRequest remove;
      remove.set_job_id(job.job_id());
      atlpb::job::v1::DeleteJobResponse removed;
      (void)Do([&](grpc::ClientContext* context) { return jobs_->DeleteJob(context, remove, &removed); });
    }
  }

  size_t WaitingClaims() {
    size_t waiting = 0;
    coordinator_->WithCore([&](coordinator::Core& core) { waiting = core.waiting_claims(); });
    return waiting;
  }
  size_t Watches() {
    size_t watches = 0;
    coordinator_->WithCore([&](coordinator::Core& core) { watches = core.watches(); });
    return watches;
  }

  std::string folder_;
  std::unique_ptr<coordinator::Coordinator> coordinator_;
  std::unique_ptr<atlpb::island::v1::IslandService::Stub> islands_;
  std::unique_ptr<atlpb::job::v1::JobService::Stub> jobs_;
  std::unique_ptr<router::Engine> engine_;
  std::unique_ptr<router::SampleService> sampler_;
  std::shared_ptr<EchoLane> lane_;
  std::unique_ptr<worker::ExpertService> expert_;
  std::unique_ptr<metrics::Registry> registry_;
  std::unique_ptr<worker::WorkerMetrics> worker_metrics_;
  std::unique_ptr<worker::Island> island_;
  std::vector<std::unique_ptr<rpc::Server>> servers_;
  std::vector<Method> methods_;
  atlpb::island::v1::LeaseToken token_;
  std::string job_id_;
  std::string write_prefix_;
  int64_t incarnation_ = 0;
  size_t idle_claims_ = 0;
  size_t idle_watches_ = 0;
};

// As the method itself would be called, whatever kind it is; the answer's end is waited for.
absl::Status Send(const Method& method, const std::vector<std::string>& messages, absl::Duration timeout) {
  grpc::GenericStub stub(method.channel);
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  rpc::SetTimeout(&context, timeout, /*wait_for_ready=*/true);
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto call = stub.PrepareCall(&context, "/" + method.name, &queue);
  call->StartCall(nullptr);
  bool open = next();
  for (const std::string& message : messages) {
    const grpc::Slice slice(message);
    if (open) {
      call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
      open = next();
    }
  }
  if (open) {
    call->WritesDone(nullptr);
    (void)next();
  }
  grpc::ByteBuffer answer;
  for (int i = 0; i < kMostAnswers; ++i) {
    call->Read(&answer, nullptr);
    if (!next()) break;
    if (i + 1 == kMostAnswers) context.TryCancel();
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  (void)next();
  queue.Shutdown();
  return rpc::FromGrpc(status);
}

bool IsLongPoll(const Method& method) {
  return method.descriptor->client_streaming() || method.descriptor->server_streaming() ||
         method.name.find("/ClaimTask") != std::string::npos;
}

void CheckStatus(const Method& method, bool whole, const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kDataLoss:
      if (ErrorReason(status).empty()) Fail(fmt::format("{}: no reason: {}", method.name, status.ToString()));
      Require(status.message().size() <= kLongestMessage && status.message().find('\n') == std::string_view::npos,
              fmt::format("{}: no short line: {}", method.name, status.ToString()));
      return;
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
      // gRPC's own answer to bytes that are no message.
      if (whole) Fail(fmt::format("{}: {}", method.name, status.ToString()));
      return;
    case absl::StatusCode::kUnavailable:
      // The leader's answer to a rank that it does not want again; a server that is gone has no reason.
      if (ErrorReason(status).empty()) Fail(fmt::format("{}: {}", method.name, status.ToString()));
      return;
    case absl::StatusCode::kDeadlineExceeded:
      if (!IsLongPoll(method)) Fail(fmt::format("{}: no answer", method.name));
      return;
    default:
      return;
  }
}

void Run(Servers& servers, std::string_view input) {
  const size_t end = std::min(input.find('\n'), input.size());
  const std::string_view line = input.substr(0, end);
  std::string bytes(input.substr(std::min(end + 1, input.size())));
  const std::string_view name = line.substr(0, line.find(' '));
  const std::vector<Method>& methods = servers.methods();
  const auto named =
      std::find_if(methods.begin(), methods.end(), [name](const Method& method) { return method.name == name; });
  // A name that was changed means any of them.
  size_t hash = 0;
  for (const char c : name) hash = hash * 31 + static_cast<unsigned char>(c);
  const Method& method = named != methods.end() ? *named : methods[hash % methods.size()];

  pb::DynamicMessageFactory factory;
  const std::unique_ptr<pb::Message> message(factory.GetPrototype(method.descriptor->input_type())->New());
  const bool whole = message->ParseFromString(bytes);
  if (whole && line.find("live") != std::string_view::npos) {
    servers.MakeLive(message.get());
    bytes = message->SerializeAsString();
  }
  std::vector<std::string> messages = {bytes};
  if (method.descriptor->client_streaming() && line.find("thrice") != std::string_view::npos) {
    const size_t third = bytes.size() / 3;
    messages = {bytes.substr(0, third), bytes.substr(third, third), bytes.substr(2 * third)};
    if (whole) messages = {bytes, bytes, bytes};
  }
  const absl::Status status = Send(method, messages, IsLongPoll(method) ? kWaitTime : kAnswerTime);
  if (!status.ok()) CheckStatus(method, whole, status);
}

void RunAndLook(std::string_view input) {
  static Servers* servers = nullptr;
  if (servers == nullptr) {
    servers = new Servers;
    std::atexit([] { delete servers; });
  }
  static int64_t runs = 0;
  static int64_t resident_at_first = 0;
  Run(*servers, input);
  if (++runs % kRefreshEvery == 0) servers->Refresh();
  if (runs % kLookEvery != 0) return;
  servers->RequireIdle();
  const int64_t resident = ResidentBytes();
  if (resident_at_first == 0) resident_at_first = resident;
  Require(resident - resident_at_first < kMostGrowth,
          fmt::format("{} MB after {} calls, {} MB at first", resident >> 20, runs, resident_at_first >> 20));
}

}  // namespace
}  // namespace atl

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  atl::RunAndLook(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
