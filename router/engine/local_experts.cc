#include "router/engine/local_experts.h"

#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/synchronization/mutex.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/model/device.h"
#include "common/model/fingerprint.h"
#include "common/model/weights.h"
#include "fmt/format.h"
#include "router/engine/local_lane.h"
#include "router/engine/network.h"
#include "router/engine/stored_probe.h"
#include "spdlog/spdlog.h"

namespace atl::router {
namespace {

// A batch of one takes another way through the kernels than all larger ones, on the processor; on a device small
// batches leave it idle.
constexpr int64_t kProcessorReproducibleRows = 2;
constexpr int64_t kDeviceReproducibleRows = 8;
// The engine forms batches as late as it can; a device has the next one ready when it ends one.
constexpr int32_t kProcessorSlots = 1;
constexpr int32_t kDeviceSlots = 2;

// Sizes of reproducible batches, found once per shape of network. Thread-safe.
class SizesByShape {
 public:
  explicit SizesByShape(int64_t base) : base_(base) {}

  absl::StatusOr<std::vector<int64_t>> Of(const Network& network) {
    Found* found = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      std::unique_ptr<Found>& slot = by_shape_[model::ToJson(network.config())];
      if (slot == nullptr) slot = std::make_unique<Found>();
      found = slot.get();
    }
    std::call_once(found->once, [&] { found->sizes = network.ReproducibleSizes(base_); });
    return found->sizes;
  }

 private:
  struct Found {
    std::once_flag once;
    absl::StatusOr<std::vector<int64_t>> sizes;
  };
  const int64_t base_;
  absl::Mutex mutex_;
  std::map<std::string, std::unique_ptr<Found>> by_shape_ ABSL_GUARDED_BY(mutex_);
};

absl::Status CheckShape(const VersionFiles& files, int32_t expert, const model::DitConfig& config) {
  const auto describe = [](int64_t channels, int64_t height, int64_t width, int64_t classes, int64_t outputs,
                           bool self_conditioning) {
    return fmt::format("{}x{}x{} images, {} classes, {} outputs{}", channels, height, width, classes, outputs,
                       self_conditioning ? ", self-conditioned" : "");
  };
  const SamplerInfo& info = files.served.info;
  const bool routes = expert == kRouterNetwork;
  // The router network sees no estimate.
  const std::string expected = describe(info.channels, info.height, info.width, info.classes, routes ? info.experts : 0,
                                        !routes && info.self_conditioning);
  const std::string found = describe(config.channels, config.height, config.width_pixels, config.classes,
                                     config.outputs, config.self_conditioning);
  if (expected == found) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDataLoss, "MODEL_MISMATCH",
                   fmt::format("{}: expected {}, found {}", Describe(files.served.network(expert)), expected, found));
}

// Reads, verifies and places one network. The weights are in memory once: their file is mapped.
absl::StatusOr<std::shared_ptr<const Network>> ReadNetwork(const VersionFiles& files, int32_t expert,
                                                           const std::string& device) {
  ATOLL_ASSIGN_OR_RETURN(const storage::CheckpointFile config_file, FindFile(files, expert, storage::kConfigFile));
  ATOLL_ASSIGN_OR_RETURN(const storage::CheckpointFile weights_file, FindFile(files, expert, storage::kWeightsFile));
  const auto uri_of = [&](const storage::CheckpointFile& file) {
    return fmt::format("{}/{}", files.folder_uri, file.name);
  };
  ATOLL_ASSIGN_OR_RETURN(const std::string config, files.store->ReadVerified(uri_of(config_file), config_file.sha256));
  absl::StatusOr<model::LoadedModel> loaded;
  {
    ATOLL_ASSIGN_OR_RETURN(const storage::MappedFile weights,
                           files.store->MapVerified(uri_of(weights_file), weights_file.sha256));
    loaded = model::LoadModel(config, weights.bytes, uri_of(weights_file));
  }
  ATOLL_RETURN_IF_ERROR(loaded.status());
  ATOLL_RETURN_IF_ERROR(CheckShape(files, expert, loaded->config));
  return Network::Place(*std::move(loaded), device);
}

// The probe that was stored when the version was published, where it has one.
absl::Status CheckStoredProbe(const VersionFiles& files, int32_t expert, const Network& network) {
  ATOLL_ASSIGN_OR_RETURN(const std::optional<StoredProbe> probe, ReadStoredProbe(files, expert));
  if (!probe.has_value()) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(const std::vector<float> answers, network.Run(probe->rows));
  return CheckAnswers(*probe, answers,
                      network.config().compute == "bfloat16" ? kProbeToleranceBfloat16 : kProbeTolerance,
                      Describe(files.served.network(expert)));
}

}  // namespace

// What lanes share with the LocalExperts that made them.
struct LocalExperts::Core {
  struct Device {
    model::DeviceInfo info;
    std::shared_ptr<NetworkMemory> memory;
  };

  Core(int64_t reproducible_rows, Clock* clock) : clock(clock), sizes(reproducible_rows) {}

  absl::StatusOr<LocalLane::Computed> Evaluate(Device* device, const Evaluation& evaluation);

  Clock* const clock;
  SizesByShape sizes;
  std::vector<Device> devices;  // fixed once made
};

absl::StatusOr<LocalLane::Computed> LocalExperts::Core::Evaluate(Device* device, const Evaluation& evaluation) {
  UseOneThread();
  const auto pinned = device->memory->Pin(evaluation.network);
  if (!pinned.ok()) {
    const absl::Status& why = pinned.status();
    if (ErrorReason(why) == "NETWORK_NOT_HOSTED") return why;
    spdlog::warn("cannot load {} again: {}", Describe(evaluation.network), std::string(why.message()));
    // A store that is away may come back; files that are gone or damaged do not.
    if (why.code() != absl::StatusCode::kUnavailable) device->memory->Abandon(evaluation.network);
    return MakeError(absl::StatusCode::kUnavailable, ErrorReason(why), std::string(why.message()));
  }
  const Network& network = **pinned;
  ATOLL_RETURN_IF_ERROR(network.Check(evaluation));
  std::vector<int64_t> fixed;
  if (evaluation.reproducible) {
    ATOLL_ASSIGN_OR_RETURN(fixed, sizes.Of(network));
  }
  const absl::Duration start = clock->Monotonic();
  ATOLL_ASSIGN_OR_RETURN(std::vector<float> values, evaluation.reproducible
                                                        ? network.RunInFixedBatches(evaluation.rows, fixed)
                                                        : network.Run(evaluation.rows));
  return LocalLane::Computed{.values = std::move(values), .compute_time = clock->Monotonic() - start};
}

absl::StatusOr<std::unique_ptr<LocalExperts>> LocalExperts::Create(const LocalExpertsOptions& options, Clock* clock) {
  if (options.threads < 1) {
    return FieldError("--threads", "THREADS_OUT_OF_RANGE",
                      fmt::format("expected at least 1, found {}", options.threads));
  }
  if (options.memory_budget_bytes < 0) {
    return FieldError("--memory-budget", "MEMORY_BUDGET_OUT_OF_RANGE",
                      fmt::format("expected 0 (no limit) or more, found {}", options.memory_budget_bytes));
  }
  absl::StatusOr<std::vector<model::DeviceInfo>> devices = model::OpenDevices(options.device);
  if (!devices.ok()) return WithContext(devices.status(), "--device");
  const bool processor = options.device == "cpu";
  const int64_t rows = options.reproducible_rows > 0 ? options.reproducible_rows
                       : processor                   ? kProcessorReproducibleRows
                                                     : kDeviceReproducibleRows;
  const auto core = std::make_shared<Core>(rows, clock);
  for (const model::DeviceInfo& info : *devices) {
    core->devices.push_back(
        {.info = info, .memory = std::make_shared<NetworkMemory>(options.memory_budget_bytes, clock)});
  }
  std::unique_ptr<LocalExperts> experts(new LocalExperts(core));
  experts->fingerprint_ = model::NumericsFingerprint(devices->front(), /*threads=*/1, rows);
  for (Core::Device& device : core->devices) {
    for (int lane = 0; lane < (processor ? options.threads : 1); ++lane) {
      const std::string name = processor ? fmt::format("{}/{}", device.info.torch_name, lane) : device.info.torch_name;
      experts->lanes_.push_back(std::make_shared<LocalLane>(
          LaneInfo{.name = name,
                   .slots = processor ? kProcessorSlots : kDeviceSlots,
                   .fingerprint = model::NumericsFingerprint(device.info, /*threads=*/1, rows)},
          device.memory,
          [core, device = &device](const Evaluation& evaluation) { return core->Evaluate(device, evaluation); },
          clock));
    }
  }
  return experts;
}

LocalExperts::~LocalExperts() = default;

absl::Status LocalExperts::Load(std::shared_ptr<const VersionFiles> files, int32_t expert) {
  const NetworkId id = files->served.network(expert);
  ATOLL_ASSIGN_OR_RETURN(const int64_t bytes, WeightBytes(*files, expert));
  std::vector<NetworkMemory*> hosting;
  absl::Cleanup forget = [&] {
    for (NetworkMemory* memory : hosting) memory->Forget(id);
  };
  for (const Core::Device& device : core_->devices) {
    ATOLL_RETURN_IF_ERROR(device.memory->Host(
        id, bytes, [files, expert, name = device.info.torch_name] { return ReadNetwork(*files, expert, name); }));
    hosting.push_back(device.memory.get());
  }
  UseOneThread();
  ATOLL_ASSIGN_OR_RETURN(const auto network, core_->devices.front().memory->Pin(id));
  ATOLL_RETURN_IF_ERROR(network->Probe(Describe(id)));
  ATOLL_RETURN_IF_ERROR(CheckStoredProbe(*files, expert, *network));
  std::move(forget).Cancel();
  return absl::OkStatus();
}

void LocalExperts::Forget(const NetworkId& id) {
  for (const Core::Device& device : core_->devices) device.memory->Forget(id);
}

absl::StatusOr<std::shared_ptr<const ServedVersion>> LocalExperts::Host(std::shared_ptr<const VersionFiles> files) {
  std::vector<NetworkId> loaded;
  absl::Cleanup forget = [&] {
    for (const NetworkId& id : loaded) Forget(id);
  };
  // The router network last: it is what is used in every step, so it is the last to give way.
  for (int32_t expert = 0; expert <= files->index.experts; ++expert) {
    const int32_t network = expert == files->index.experts ? kRouterNetwork : expert;
    ATOLL_RETURN_IF_ERROR(Load(files, network));
    loaded.push_back(files->served.network(network));
  }
  std::move(forget).Cancel();
  return std::shared_ptr<const ServedVersion>(new ServedVersion(files->served),
                                              [core = core_, loaded](const ServedVersion* served) {
                                                for (const Core::Device& device : core->devices) {
                                                  for (const NetworkId& id : loaded) device.memory->Forget(id);
                                                }
                                                delete served;
                                              });
}

NetworkMemoryStats LocalExperts::stats() const {
  NetworkMemoryStats sum;
  for (const Core::Device& device : core_->devices) {
    const NetworkMemoryStats stats = device.memory->stats();
    sum.budget_bytes += stats.budget_bytes;
    sum.resident_bytes += stats.resident_bytes;
    sum.networks += stats.networks;
    sum.resident += stats.resident;
    sum.loads += stats.loads;
    sum.evictions += stats.evictions;
  }
  return sum;
}

}  // namespace atl::router
