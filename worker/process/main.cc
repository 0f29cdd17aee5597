// atoll-worker: one rank of an island. Rank 0 leads: it claims tasks from the coordinator and hosts the rendezvous.
// With --serve it is no rank: it hosts experts for routers.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/random/random.h"
#include "absl/strings/numbers.h"
#include "absl/synchronization/notification.h"
#include "common/auth/http_access.h"
#include "common/auth/security.h"
#include "common/auth/security_flags.h"
#include "common/auth/tls_check.h"
#include "common/base/byte_size.h"
#include "common/base/errors.h"
#include "common/base/explain.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/formats/checkpoint.h"
#include "common/metrics/exposer.h"
#include "common/model/device.h"
#include "common/storage/blob_store.h"
#include "expert_server/expert_server.h"
#include "fmt/format.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "worker/attempt/local_profile.h"
#include "worker/island/data_network.h"
#include "worker/island/host_memory.h"
#include "worker/island/rank_device.h"
#include "worker/island/rank_discovery.h"
#include "worker/island/rendezvous_client.h"
#include "worker/leader/leader.h"
#include "worker/process/preemption.h"
#include "worker/process/stop_signals.h"
#include "worker/tasks/task.h"
#include "worker/trainer/profiler.h"
#include "worker/trainer/trainer.h"
#include "worker/transport/loopback/loopback_transport.h"
#include "worker/transport/ucx/ucx_transport.h"
#ifdef ATOLL_CUDA
#include "worker/transport/nccl/nccl_transport.h"
#endif

namespace atl::worker {
namespace {

struct Flags {
  std::string coordinator;
  std::string blob_store;
  bool granted_storage = false;
  std::string island_id;
  int32_t rank = -1;
  int32_t ranks = -1;
  std::string leader;
  std::string island_secret_file;
  int32_t threads = 1;
  std::string metrics_listen;
  bool metrics_open = false;
  std::vector<std::string> labels;
  std::string device = "cpu";
  std::string transport;
  DataNetworkFlags data_network;
  std::string port_file;
  double rejoin_seconds = 10;
  double stop_seconds = 20;
  std::string preemption_notices = "none";
  PreemptionOptions preemption;
  std::string log_level = "info";
  LocalProfileOptions profile;
  rpc::SecurityOptions security;
  bool serve = false;
  std::vector<std::string> experts;
  ExpertServerOptions expert_server;
};

void AddFlags(CLI::App& app, Flags& flags) {
  app.description(
      "One rank of a compute island. Rank 0 leads: it claims tasks from the coordinator and gathers the other ranks.\n"
      "Without --rank, --ranks and --leader the variables of torchrun, Kubernetes JobSet or Slurm say who it is.\n"
      "With --serve it serves experts of published models to routers.");
  app.set_version_flag("--version", std::string(kVersion));
  app.add_option("--coordinator", flags.coordinator,
                 "Coordinator, HOST:PORT, or of several HOST:PORT,HOST:PORT: of rank 0, or of a --serve that hosts "
                 "what it is assigned")
      ->envname("ATOLL_COORDINATOR");
  app.add_option("--blob-store", flags.blob_store, "URI of the blob store: file:///path, s3://bucket/prefix, ...")
      ->envname("ATOLL_BLOB_STORE");
  app.add_flag("--granted-storage", flags.granted_storage,
               "Open the blob store, s3://…, with the keys that tasks bring alone: this machine has none");
  app.add_option("--island-id", flags.island_id, "Name of the island, unique among islands")
      ->envname("ATOLL_ISLAND_ID");
  app.add_option("--rank", flags.rank, "This process's rank; 0 leads")->check(CLI::NonNegativeNumber);
  app.add_option("--ranks", flags.ranks, "Ranks of the island")->check(CLI::PositiveNumber);
  app.add_option("--leader", flags.leader, "Where rank 0 gathers the others, HOST:PORT");
  app.add_option("--island-secret-file", flags.island_secret_file,
                 "File with the secret that the island's ranks share (needed with more than one rank)")
      ->envname("ATOLL_ISLAND_SECRET_FILE");
  app.add_option("--threads", flags.threads, "Compute threads")->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--metrics-listen", flags.metrics_listen, "HOST:PORT of /metrics and /healthz (default: none)");
  app.add_flag("--metrics-open", flags.metrics_open,
               "Serve metrics in the clear and to everybody, wherever it listens");
  app.add_option("--label", flags.labels, "KEY=VALUE that jobs may require; may be repeated");
  app.add_option(
         "--device", flags.device,
         "cpu, cuda or cuda:N. With cuda a rank takes the only device that it sees, or the one of LOCAL_RANK or\n"
         "SLURM_LOCALID, or the one that the leader gives it. With --serve also a list, as cuda:0,cuda:1, or\n"
         "cpu:0,cpu:1 for parts of the processor, which share --threads")
      ->capture_default_str();
  app.add_option("--transport", flags.transport, "Between ranks: ucx, nccl or loopback (default: by device)")
      ->check(CLI::IsMember({"ucx", "nccl", "loopback"}));
  app.add_option("--interface", flags.data_network.interface,
                 "Network interface over which ranks send each other tensors, as eth1 (default: 'lo' where all are on "
                 "this machine)");
  app.add_flag("--trusted-data-network", flags.data_network.trusted,
               "Nobody else can read or write on --interface's network: tensors travel there in the clear");
  rpc::AddSecurityFlags(app, &flags.security, rpc::Side::kBoth);
  app.add_option("--port-file", flags.port_file,
                 "Rank 0: write the rendezvous' HOST:PORT to this file; with --serve the server's");
  app.add_option("--rejoin-seconds", flags.rejoin_seconds,
                 "Rank 0: how long to wait for missing ranks before going on without them")
      ->check(CLI::Range(0.0, 86'400.0))
      ->capture_default_str();
  app.add_option(
         "--stop-seconds", flags.stop_seconds,
         "After SIGTERM or SIGUSR1 (Slurm): how long to try to leave a checkpoint; where that is too short for\n"
         "one, the task is given back at once")
      ->check(CLI::Range(0.0, 86'400.0))
      ->capture_default_str();
  app.add_option(
         "--preemption-notices", flags.preemption_notices,
         "Ask the cloud's metadata server whether this machine is to be taken away: none, auto, aws, gcp or azure")
      ->check(CLI::IsMember({"none", "auto", "aws", "gcp", "azure"}))
      ->capture_default_str();
  app.add_option("--metadata-url", flags.preemption.metadata_url, "Where that server is")->capture_default_str();
  app.add_flag("--serve", flags.serve, "Serve experts to routers instead of training: no rank of an island")
      ->excludes("--granted-storage");
  app.add_option("--model-dir", flags.expert_server.model_dir,
                 "With --serve: folder of one published model (model_index.json) to serve, in place of --coordinator");
  app.add_option("--experts", flags.experts, "With --model-dir: what to host, as 0,1,router (default: everything)")
      ->delimiter(',');
  app.add_option("--listen", flags.expert_server.listen, "With --serve: HOST:PORT to serve at; port 0 takes a free one")
      ->capture_default_str();
  app.add_option("--advertise", flags.expert_server.advertise,
                 "With --serve: HOST or HOST:PORT at which routers reach it (default: that of --listen)");
  app.add_option("--server-id", flags.expert_server.server_id,
                 "With --serve: name of this server, unique among servers and the same after a restart (default: the\n"
                 "address at which routers reach it)");
  app.add_option(
         "--memory", flags.expert_server.local.memory_budget_bytes,
         "With --serve: memory for weights, as 8GB, per device; what does not fit is read again when it is asked "
         "for (default: no limit)")
      ->transform(ByteSize());
  app.add_option("--profile", flags.profile.folder, "Measure the costs of FOLDER/job.yaml and end (`atoll profile`)");
  app.add_option("--profile-network", flags.profile.network, "expert or router")
      ->check(CLI::IsMember({"expert", "router"}));
  app.add_option("--profile-image", flags.profile.image, "CHANNELSxHEIGHTxWIDTH");
  app.add_option("--profile-classes", flags.profile.classes, "Classes of the model")->check(CLI::NonNegativeNumber);
  app.add_option("--profile-sizes", flags.profile.micro_batch_sizes, "Samples per micro-batch")->delimiter(',');
  app.add_option("--log-level", flags.log_level, "trace, debug, info, warn, error or off")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}))
      ->capture_default_str();
}

// Two ranks agree on every bit only when they run the same program: its hash is the build.
absl::StatusOr<std::string> BuildName() {
  ATOLL_ASSIGN_OR_RETURN(const std::string program, ReadFile("/proc/self/exe"));
  return fmt::format("{}+{}", kVersion, storage::Sha256(program).substr(0, 12));
}

absl::StatusOr<std::string> IslandSecret(const Flags& flags, const RankIdentity& identity) {
  if (flags.island_secret_file.empty()) {
    if (identity.ranks > 1) {
      return MakeError(absl::StatusCode::kInvalidArgument, "ISLAND_SECRET_REQUIRED",
                       fmt::format("--island-secret-file: expected with {} ranks, found none", identity.ranks));
    }
    // No other process may join, so a random secret does.
    absl::BitGen random;
    return fmt::format("{:016x}{:016x}", absl::Uniform<uint64_t>(random), absl::Uniform<uint64_t>(random));
  }
  absl::StatusOr<std::string> read = ReadFile(flags.island_secret_file);
  if (!read.ok()) return WithContext(read.status(), "--island-secret-file");
  std::string secret = *std::move(read);
  secret.erase(secret.find_last_not_of(" \r\n") + 1);
  if (!secret.empty()) return secret;
  return MakeError(absl::StatusCode::kInvalidArgument, "ISLAND_SECRET_REQUIRED",
                   fmt::format("--island-secret-file: expected a secret in {}, found none", flags.island_secret_file));
}

// Returns the security that the flags describe, checked for calls to `coordinator` if it is set.
absl::StatusOr<std::shared_ptr<const rpc::Security>> SecurityOf(const Flags& flags) {
  ATOLL_ASSIGN_OR_RETURN(std::shared_ptr<const rpc::Security> security, rpc::Security::Make(flags.security));
  if (!flags.coordinator.empty()) ATOLL_RETURN_IF_ERROR(security->CheckTarget(flags.coordinator));
  return security;
}

// The device's, which a rank has to itself; on the processor the rank's share of the host's.
absl::StatusOr<int64_t> MemoryPerRank(const model::DeviceInfo& device, int32_t ranks_per_host) {
  if (device.memory_bytes > 0) return device.memory_bytes;
  return HostMemoryPerRank(ranks_per_host);
}

std::string HostName() {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  return host;
}

std::vector<RankDevice> SeenByOthers(const std::vector<model::DeviceInfo>& devices) {
  std::vector<RankDevice> seen;
  for (const model::DeviceInfo& device : devices) {
    if (device.torch_name == "cpu") continue;
    seen.push_back({.label = device.label, .id = device.uuid});
  }
  return seen;
}

// The devices that this rank may have, by preference. Before anything is promised to a coordinator.
absl::StatusOr<std::vector<model::DeviceInfo>> DevicesOf(const std::string& flag,
                                                         const std::optional<LocalRank>& local) {
  std::vector<model::DeviceInfo> visible;
  if (flag == "cuda" || flag.starts_with("cuda:")) {
#ifdef ATOLL_CUDA
    absl::StatusOr<std::vector<model::DeviceInfo>> opened = model::OpenDevices("cuda");
    if (!opened.ok()) return WithContext(opened.status(), "--device");
    visible = *std::move(opened);
#else
    return MakeError(absl::StatusCode::kFailedPrecondition, "DEVICE_UNAVAILABLE",
                     fmt::format("--device {}: expected a build with CUDA, found one without", flag));
#endif
  }
  ATOLL_ASSIGN_OR_RETURN(const DeviceChoice choice, ChooseDevice(flag, local, static_cast<int32_t>(visible.size())));
  if (choice.numbers.empty()) return model::OpenDevices("cpu");
  std::vector<model::DeviceInfo> devices;
  for (const int32_t number : choice.numbers) devices.push_back(visible[number]);
  spdlog::info("device {}: {}", devices.size() == 1 ? devices[0].label : "of several", choice.reason);
  return devices;
}

absl::StatusOr<atlpb::island::v1::Capabilities> CapabilitiesOf(const Flags& flags, const RankIdentity& identity,
                                                               const Environment& environment, const std::string& build,
                                                               const model::DeviceInfo& device) {
  atlpb::island::v1::Capabilities capabilities;
  capabilities.set_build(build);
  capabilities.mutable_protocol()->set_min(1);
  capabilities.mutable_protocol()->set_max(1);
  capabilities.mutable_format()->set_min(1);
  capabilities.mutable_format()->set_max(storage::kCheckpointFormat);
  capabilities.set_ranks(identity.ranks);
  capabilities.set_device_kind(device.torch_name == "cpu" ? "cpu" : "cuda");
  capabilities.set_device_name(device.name);
  ATOLL_ASSIGN_OR_RETURN(const int64_t memory, MemoryPerRank(device, RanksPerHost(identity, environment)));
  capabilities.set_memory_bytes_per_rank(memory);
  for (const std::string& label : flags.labels) {
    const size_t equals = label.find('=');
    if (equals == std::string::npos || equals == 0) {
      return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_LABEL",
                       fmt::format("--label: expected KEY=VALUE, found '{}'", label));
    }
    (*capabilities.mutable_labels())[label.substr(0, equals)] = label.substr(equals + 1);
  }
  return capabilities;
}

// A leader with a name of its own may not know it yet (a pod's, before its DNS record): it listens everywhere.
std::string ListenAddress(const std::string& leader) {
  return IsLocalAddress(leader) ? leader : "0.0.0.0" + leader.substr(leader.rfind(':'));
}

using transport::AttemptIdentity;
using transport::Transport;

absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(const Flags& flags, const std::string& device, int32_t rank,
                                                         int32_t ranks, const AttemptIdentity& identity) {
  if (ranks == 1) return std::move(transport::MakeLoopbackTransports(1, identity)[0]);
  const std::string kind = !flags.transport.empty() ? flags.transport : device == "cpu" ? "ucx" : "nccl";
  if (kind == "ucx") {
    transport::UcxOptions options;
    options.interface = flags.data_network.interface;
    return transport::MakeUcxTransport(options, rank, ranks, identity);
  }
#ifdef ATOLL_CUDA
  if (kind == "nccl" && device.starts_with("cuda:")) {
    transport::NcclOptions options{.api = transport::RealNcclApi()};
    if (!absl::SimpleAtoi(device.substr(device.find(':') + 1), &options.device)) options.device = -1;
    return transport::MakeNcclTransport(options, rank, ranks, identity);
  }
#endif
  return MakeError(absl::StatusCode::kInvalidArgument, "TRANSPORT_UNSUPPORTED",
                   fmt::format("--transport {}: expected one that {} processes of this build can use (ucx{})", kind,
                               ranks, kind == "loopback" ? "" : "; nccl needs a build with CUDA"));
}

AttemptParts MakeParts(const Flags& flags, storage::BlobStore* store, WorkerMetrics* metrics) {
  AttemptParts parts{.store = store, .clock = Clock::Real(), .metrics = metrics, .threads = flags.threads};
  parts.make_transport = [flags](const std::string& device, int32_t rank, int32_t ranks,
                                 const AttemptIdentity& identity) {
    return MakeTransport(flags, device, rank, ranks, identity);
  };
  parts.open_data = [store](const TrainingInputs& inputs) {
    return trainer::OpenTrainingData(store, inputs.partitions);
  };
  parts.make_trainer = [](const trainer::TrainerOptions& options, const planner::Plan& plan, int32_t rank,
                          trainer::TrainingData* data, Transport* transport) {
    return trainer::Trainer::Create(options, plan, rank, data, transport, Clock::Real());
  };
  parts.profile_rank = [](const trainer::ProfilerOptions& options, Transport* transport) {
    return trainer::ProfileRank(options, transport, Clock::Real());
  };
  parts.obtain_frozen_cache = [store](trainer::TrainingData* data, const trainer::FrozenCacheOptions& options) {
    return trainer::ObtainFrozenCache(store, data, options);
  };
  return parts;
}

// To --port-file, where one is given.
absl::Status WriteAddress(const Flags& flags, const std::string& address) {
  if (flags.port_file.empty()) return absl::OkStatus();
  return WithContext(WriteFile(flags.port_file, address + "\n"), "--port-file");
}

// Ends a process in which a thread hangs that can be neither aborted nor awaited. The lease expires by itself, and the
// supervisor of the process starts another one.
void EndHungProcess(const absl::Status& why) {
  spdlog::critical("the process hangs and ends without cleaning up: {}", std::string(why.message()));
  std::_Exit(1);
}

void EndProcess() {
  EndHungProcess(absl::CancelledError("it was asked to end"));
}

// Returns null if no metadata server is to be polled. Destroy it before `signals`.
std::unique_ptr<PreemptionWatch> WatchNotices(const Flags& flags, StopSignals* signals) {
  if (flags.preemption_notices == "none") return nullptr;
  PreemptionOptions options = flags.preemption;
  options.cloud = CloudNamed(flags.preemption_notices);
  Clock* const clock = Clock::Real();
  return std::make_unique<PreemptionWatch>(std::move(options), clock, [signals, clock](const SpotNotice& notice) {
    signals->Notice(notice.what, clock->Monotonic() + (notice.at - clock->Now()));
  });
}

// To probes' /healthz, from the first signal on.
void SayThatItEnds(WorkerMetrics* metrics, std::atomic<bool>* stopping) {
  metrics->stopping->Set(1);
  *stopping = true;
}

absl::Status RunLeader(const Flags& flags, const RankIdentity& identity, const Environment& environment,
                       const std::string& secret, const std::string& build, std::vector<model::DeviceInfo> devices,
                       std::shared_ptr<const rpc::Security> security, AttemptParts parts, std::atomic<bool>* stopping) {
  WorkerMetrics* const metrics = parts.metrics;
  if (flags.coordinator.empty()) {
    return MakeError(absl::StatusCode::kInvalidArgument, "COORDINATOR_REQUIRED",
                     "--coordinator: expected HOST:PORT on rank 0, found none");
  }
  devices.resize(1);  // the leader also computes outside attempts: it takes the first
  LeaderOptions options;
  options.island = {.state = {.ranks = identity.ranks, .build = build, .devices = SeenByOthers(devices)},
                    .secret = secret};
  options.listen = ListenAddress(identity.leader);
  options.security = std::move(security);
  options.coordinator = {.address = flags.coordinator,
                         .island_id = flags.island_id,
                         .credentials = options.security->channel_credentials()};
  options.coordinator.explain = [security = options.security, address = flags.coordinator] {
    return rpc::ExplainConnection(security->options(), address, absl::Seconds(2));
  };
  ATOLL_ASSIGN_OR_RETURN(options.capabilities, CapabilitiesOf(flags, identity, environment, build, devices[0]));
  options.parts = std::move(parts);
  options.run_task = tasks::RunTask;
  options.rejoin_timeout = absl::Seconds(flags.rejoin_seconds);
  options.hung = EndHungProcess;
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<Leader> leader, Leader::Start(std::move(options)));
  const std::string host = identity.leader.substr(0, identity.leader.rfind(':'));
  const std::string address = fmt::format("{}:{}", host, leader->rendezvous_port());
  ATOLL_RETURN_IF_ERROR(WriteAddress(flags, address));
  spdlog::info("island {}: leader of {} ranks ({}) at {}", flags.island_id, identity.ranks, identity.source, address);
  StopSignals signals({[&](const std::string& why, absl::Duration deadline) {
                         SayThatItEnds(metrics, stopping);
                         leader->Stop({.reason = why, .deadline = deadline});
                       },
                       [&] { leader->StopNow(); }, EndProcess},
                      {.grace = absl::Seconds(flags.stop_seconds)}, Clock::Real());
  const std::unique_ptr<PreemptionWatch> notices = WatchNotices(flags, &signals);
  return leader->Run();
}

absl::Status RunOtherRank(const Flags& flags, const RankIdentity& identity, const std::string& secret,
                          const std::string& build, const std::vector<model::DeviceInfo>& devices,
                          const rpc::Security& security, AttemptParts parts, std::atomic<bool>* stopping) {
  WorkerMetrics* const metrics = parts.metrics;
  ATOLL_RETURN_IF_ERROR(security.CheckTarget(identity.leader));
  const RendezvousOptions options{.leader = identity.leader,
                                  .credentials = security.channel_credentials(),
                                  .rank = identity.rank,
                                  .secret = secret,
                                  .build = build,
                                  .where = fmt::format("{}, process {}", HostName(), getpid()),
                                  .devices = SeenByOthers(devices),
                                  .hung = EndHungProcess};
  RendezvousClient client(options, Clock::Real(), metrics);
  RankRunner runner(std::move(parts), [&](atlpb::island::v1::JoinRequest report) { client.Send(std::move(report)); });
  spdlog::info("island {}: rank {} of {} ({})", flags.island_id, identity.rank, identity.ranks, identity.source);
  StopSignals signals({[&](const std::string& why, absl::Duration deadline) {
                         SayThatItEnds(metrics, stopping);
                         client.Stop({.reason = why, .deadline = deadline});
                       },
                       [&] { runner.AbortAll(absl::CancelledError("the process ends")); }, EndProcess},
                      {.grace = absl::Seconds(flags.stop_seconds)}, Clock::Real());
  const std::unique_ptr<PreemptionWatch> notices = WatchNotices(flags, &signals);
  const absl::Status status = client.Run(&runner);
  // While signals still end a process that hangs: the runner's destructor waits for its thread without a limit.
  if (!runner.AwaitIdle(options.hung_timeout)) {
    EndHungProcess(absl::DeadlineExceededError("an aborted attempt does not end"));
  }
  return status;
}

absl::Status RunProfile(const Flags& flags, const RankIdentity& identity) {
  LocalProfileOptions options = flags.profile;
  options.rank = identity.rank;
  options.ranks = identity.ranks;
  // No leader gives devices away here; the ranks are all on this machine, so each knows what the others take.
  ATOLL_ASSIGN_OR_RETURN(const std::vector<model::DeviceInfo> devices, DevicesOf(flags.device, std::nullopt));
  if (const std::vector<RankDevice> seen = SeenByOthers(devices); !seen.empty()) {
    std::vector<DeviceSeeker> seekers;
    for (int32_t rank = 0; rank < identity.ranks; ++rank) {
      seekers.push_back({.rank = rank, .where = HostName(), .devices = seen});
    }
    ATOLL_ASSIGN_OR_RETURN(const std::vector<RankDevice> given, AssignDevices(seekers));
    options.device = given[identity.rank].label;
  }
  return RunLocalProfile(options, MakeParts(flags, nullptr, nullptr));
}

absl::Status RunExpertServer(const Flags& flags) {
  spdlog::set_default_logger(spdlog::stderr_logger_mt("experts"));
  spdlog::set_level(spdlog::level::from_str(flags.log_level));
  spdlog::flush_on(spdlog::level::info);
  ExpertServerOptions options = flags.expert_server;
  options.local.device = flags.device;
  options.local.threads = flags.threads;
  options.metrics_listen = flags.metrics_listen;
  options.metrics_open = flags.metrics_open;
  options.coordinator = flags.coordinator;
  options.blob_store = flags.blob_store;
  ATOLL_ASSIGN_OR_RETURN(options.security, SecurityOf(flags));
  ATOLL_RETURN_IF_ERROR(options.security->ServerCredentials(options.listen).status());
  ATOLL_ASSIGN_OR_RETURN(options.networks, ParseNetworks(flags.experts));
  // The first cause of the end: a signal, or another process with this server's name.
  struct End {
    absl::Notification due;
    absl::Status status;
    std::once_flag once;
  };
  const auto end = std::make_shared<End>();
  const auto finish = [end](const absl::Status& status) {
    std::call_once(end->once, [&] {
      end->status = status;
      end->due.Notify();
    });
  };
  options.superseded = finish;
  // Before the server, so that they end one that hangs while it loads, or in its destructor.
  StopSignals signals({[&](const std::string& why, absl::Duration) {
                         spdlog::info("{}: batches under way are answered, then it ends", why);
                         finish(absl::OkStatus());
                       },
                       [&] { finish(absl::OkStatus()); }, EndProcess},
                      {.grace = absl::Seconds(flags.stop_seconds)}, Clock::Real());
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<ExpertServer> server, ExpertServer::Start(options, Clock::Real()));
  ATOLL_RETURN_IF_ERROR(WriteAddress(flags, server->address()));
  spdlog::info("expert server {} at {}{}: {} networks, arithmetic {}", kVersion, server->address(),
               server->server_id().empty() ? "" : fmt::format(", named {}", server->server_id()),
               server->hosting().networks.size(), server->hosting().fingerprint);
  const std::unique_ptr<PreemptionWatch> notices = WatchNotices(flags, &signals);
  end->due.WaitForNotification();
  // Routers ask elsewhere for what is cancelled.
  server->Shutdown(absl::Seconds(1));
  return end->status;
}

absl::Status CheckIslandFlags(const Flags& flags) {
  if (flags.blob_store.empty()) {
    return FieldError("--blob-store", "BLOB_STORE_REQUIRED", "expected the URI of the blob store, found none");
  }
  if (flags.island_id.empty()) {
    return FieldError("--island-id", "ISLAND_ID_REQUIRED", "expected the island's name, found none");
  }
  return absl::OkStatus();
}

absl::Status RunWorker(Flags flags) {
  if (flags.serve) return RunExpertServer(flags);
  ATOLL_RETURN_IF_ERROR(CheckIslandFlags(flags));
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) environment[text.substr(0, equals)] = text.substr(equals + 1);
  }
  RankFlags rank_flags{.leader = flags.leader};
  if (flags.rank >= 0) rank_flags.rank = flags.rank;
  if (flags.ranks > 0) rank_flags.ranks = flags.ranks;
  ATOLL_ASSIGN_OR_RETURN(const RankIdentity identity, DiscoverRank(rank_flags, environment));
  ATOLL_ASSIGN_OR_RETURN(flags.data_network.interface,
                         ChooseDataInterface(flags.data_network, IsLocalAddress(identity.leader), identity.ranks));
#ifdef ATOLL_CUDA
  // NCCL reads it when it is first used. "=": this name, not all that begin with it.
  setenv("NCCL_SOCKET_IFNAME", ("=" + flags.data_network.interface).c_str(), 1);
#endif
  spdlog::set_default_logger(spdlog::stderr_logger_mt(fmt::format("{}/{}", flags.island_id, identity.rank)));
  spdlog::set_level(spdlog::level::from_str(flags.log_level));
  spdlog::flush_on(spdlog::level::info);

  if (!flags.profile.folder.empty()) return RunProfile(flags, identity);
  ATOLL_ASSIGN_OR_RETURN(const std::optional<LocalRank> local, FindLocalRank(identity, environment));
  ATOLL_ASSIGN_OR_RETURN(std::vector<model::DeviceInfo> devices, DevicesOf(flags.device, local));
  ATOLL_ASSIGN_OR_RETURN(const std::string secret, IslandSecret(flags, identity));
  ATOLL_ASSIGN_OR_RETURN(const std::string build, BuildName());
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<storage::BlobStore> store,
                         flags.granted_storage ? storage::BlobStore::OpenForGrants(flags.blob_store)
                                               : storage::BlobStore::Open(flags.blob_store));
  const std::unique_ptr<metrics::Registry> registry = metrics::Registry::Create("worker");
  WorkerMetrics metrics(registry.get());
  std::atomic<bool> stopping = false;
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<const rpc::Security> security, SecurityOf(flags));
  std::unique_ptr<metrics::Exposer> exposer;
  if (!flags.metrics_listen.empty()) {
    ATOLL_ASSIGN_OR_RETURN(exposer, metrics::Exposer::Start(
                                        registry.get(), flags.metrics_listen, [&stopping] { return !stopping.load(); },
                                        rpc::ShowCertificate(security, registry.get()),
                                        rpc::MetricsSecurityOf(security.get(), flags.metrics_open)));
    const bool clear = flags.security.tls_dir.empty() || flags.metrics_open;
    spdlog::info("metrics at {}://{}/metrics", clear ? "http" : "https", exposer->address());
  }
  AttemptParts parts = MakeParts(flags, store.get(), &metrics);
  if (identity.rank == 0) {
    return RunLeader(flags, identity, environment, secret, build, std::move(devices), security, std::move(parts),
                     &stopping);
  }
  return RunOtherRank(flags, identity, secret, build, devices, *security, std::move(parts), &stopping);
}

}  // namespace
}  // namespace atl::worker

// Exit codes: 2 for wrong flags, 1 for anything else that keeps the rank from working.
int main(int argc, char** argv) {
  atl::log::EscapeTexts();
  atl::worker::Flags flags;
  CLI::App app;
  atl::worker::AddFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  signal(SIGPIPE, SIG_IGN);
  atl::worker::StopSignals::Block();
  const absl::Status status = atl::worker::RunWorker(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "atoll-worker: %s\n", atl::Explain(status).c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}
