#include "inference/local/local_experts.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/synchronization/mutex.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/formats/model_folder.h"
#include "common/model/device.h"
#include "common/model/fingerprint.h"
#include "common/model/weights.h"
#include "fmt/format.h"
#include "inference/hosted_networks.h"
#include "inference/local/local_lane.h"
#include "inference/local/network.h"
#include "inference/stored_probe.h"
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
  const storage::ModelIndex& index = files.index;
  const bool routes = expert == kRouterNetwork;
  // The router network sees no estimate.
  const std::string expected =
      describe(index.channels, index.height, index.width, static_cast<int64_t>(index.classes.size()),
               routes ? index.experts : 0, !routes && index.self_conditioning);
  const std::string found = describe(config.channels, config.height, config.width_pixels, config.classes,
                                     config.outputs, config.self_conditioning);
  if (expected == found) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDataLoss, "MODEL_MISMATCH",
                   fmt::format("{}: expected {}, found {}", Describe(files.network(expert)), expected, found));
}

// Reads, verifies and places one network. The weights are in memory once: their file is mapped.
absl::StatusOr<std::shared_ptr<const Network>> ReadNetwork(const VersionFiles& files, int32_t expert,
                                                           const std::string& device) {
  const auto find = [&](std::string_view name) {
    return storage::FindNetworkFile(files.index, files.folder_uri, expert, name);
  };
  ATOLL_ASSIGN_OR_RETURN(const storage::CheckpointFile config_file, find(storage::kConfigFile));
  ATOLL_ASSIGN_OR_RETURN(const storage::CheckpointFile weights_file, find(storage::kWeightsFile));
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
                      Describe(files.network(expert)));
}

}  // namespace

// The state that the lanes share with the LocalExperts that made them.
struct LocalExperts::Core {
  struct Device {
    model::DeviceInfo info;
    std::shared_ptr<NetworkMemory> memory;
    int lanes = 1;
    std::string fingerprint;
    std::shared_ptr<SizesByShape> sizes;  // of all devices of this arithmetic
  };

  Core(std::vector<Device> all, const DevicePlacerOptions& options, Clock* clock)
      : clock(clock), devices(std::move(all)), placer(options, MemoriesOf(devices), clock) {}

  static DevicePlacer::Memories MemoriesOf(const std::vector<Device>& devices) {
    DevicePlacer::Memories memories;
    for (const Device& device : devices) memories.push_back(device.memory);
    return memories;
  }
  absl::StatusOr<LocalLane::Computed> Evaluate(const Device& device, const Evaluation& evaluation);

  Clock* const clock;
  const std::vector<Device> devices;
  DevicePlacer placer;
};

absl::StatusOr<LocalLane::Computed> LocalExperts::Core::Evaluate(const Device& device, const Evaluation& evaluation) {
  UseOneThread();
  const auto pinned = device.memory->Pin(evaluation.network);
  if (!pinned.ok()) {
    const absl::Status& why = pinned.status();
    if (ErrorReason(why) == "NETWORK_NOT_HOSTED") return why;
    spdlog::warn("cannot load {} again: {}", Describe(evaluation.network), std::string(why.message()));
    // Missing or damaged files do not come back. All other causes may pass: an unreachable store, expired keys, a
    // device without room.
    if (absl::IsNotFound(why) || absl::IsDataLoss(why)) device.memory->Abandon(evaluation.network);
    return MakeError(absl::StatusCode::kUnavailable, ErrorReason(why), std::string(why.message()));
  }
  const Network& network = **pinned;
  ATOLL_RETURN_IF_ERROR(network.Check(evaluation));
  std::vector<int64_t> fixed;
  if (evaluation.reproducible) {
    ATOLL_ASSIGN_OR_RETURN(fixed, device.sizes->Of(network));
  }
  const absl::Duration start = clock->Monotonic();
  ATOLL_ASSIGN_OR_RETURN(std::vector<float> values, evaluation.reproducible
                                                        ? network.RunInFixedBatches(evaluation.rows, fixed)
                                                        : network.Run(evaluation.rows));
  const absl::Duration computed = clock->Monotonic() - start;
  placer.Record(evaluation.network, computed);
  return LocalLane::Computed{.values = std::move(values), .compute_time = computed};
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
  const bool processor = devices->front().torch_name == "cpu";
  const int64_t rows = processor ? kProcessorReproducibleRows : kDeviceReproducibleRows;
  std::map<std::string, std::shared_ptr<SizesByShape>> sizes;
  std::vector<Core::Device> made;
  const int parts = static_cast<int>(devices->size());
  for (int part = 0; part < parts; ++part) {
    const model::DeviceInfo& info = (*devices)[static_cast<size_t>(part)];
    const std::string fingerprint = model::NumericsFingerprint(info, /*threads=*/1, rows);
    std::shared_ptr<SizesByShape>& of_arithmetic = sizes[fingerprint];
    if (of_arithmetic == nullptr) of_arithmetic = std::make_shared<SizesByShape>(rows);
    const int threads = options.threads / parts + (part < options.threads % parts ? 1 : 0);
    made.push_back({.info = info,
                    .memory = std::make_shared<NetworkMemory>(options.memory_budget_bytes, clock),
                    .lanes = processor ? std::max(1, threads) : 1,
                    .fingerprint = fingerprint,
                    .sizes = of_arithmetic});
  }
  const auto core = std::make_shared<Core>(std::move(made), options.placer, clock);
  std::unique_ptr<LocalExperts> experts(new LocalExperts(core));
  experts->fingerprint_ = core->devices.front().fingerprint;
  for (const Core::Device& device : core->devices) {
    for (int lane = 0; lane < device.lanes; ++lane) {
      const std::string name = processor ? fmt::format("{}/{}", device.info.label, lane) : device.info.label;
      experts->lanes_.push_back(std::make_shared<LocalLane>(
          LaneInfo{
              .name = name, .slots = processor ? kProcessorSlots : kDeviceSlots, .fingerprint = device.fingerprint},
          device.memory,
          [core, device = &device](const Evaluation& evaluation) { return core->Evaluate(*device, evaluation); },
          clock));
    }
  }
  return experts;
}

LocalExperts::~LocalExperts() = default;

absl::Status LocalExperts::Load(std::shared_ptr<const VersionFiles> files, int32_t expert) {
  const NetworkId id = files->network(expert);
  ATOLL_ASSIGN_OR_RETURN(const int64_t bytes, WeightBytes(*files, expert));
  const auto load_on = [&](size_t device) -> NetworkMemory::Load {
    return [files, expert, name = core_->devices[device].info.torch_name] { return ReadNetwork(*files, expert, name); };
  };
  ATOLL_ASSIGN_OR_RETURN(const size_t device, core_->placer.Host(id, bytes, load_on));
  absl::Cleanup forget = [&] { core_->placer.Forget(id); };
  UseOneThread();
  NetworkMemory* const memory = core_->devices[device].memory.get();
  const auto network = memory->PinForCheck(id);
  memory->Arrived(id);
  ATOLL_RETURN_IF_ERROR(network.status());
  ATOLL_RETURN_IF_ERROR((*network)->Probe(Describe(id)));
  ATOLL_RETURN_IF_ERROR(CheckStoredProbe(*files, expert, **network));
  std::move(forget).Cancel();
  return absl::OkStatus();
}

void LocalExperts::Forget(const NetworkId& id) {
  core_->placer.Forget(id);
}

absl::StatusOr<std::shared_ptr<const VersionFiles>> LocalExperts::Host(std::shared_ptr<const VersionFiles> files) {
  std::vector<NetworkId> loaded;
  absl::Cleanup forget = [&] {
    for (const NetworkId& id : loaded) Forget(id);
  };
  // The router network last: it is what is used in every step, so it is the last to give way.
  for (int32_t expert = 0; expert <= files->index.experts; ++expert) {
    const int32_t network = expert == files->index.experts ? kRouterNetwork : expert;
    ATOLL_RETURN_IF_ERROR(Load(files, network));
    loaded.push_back(files->network(network));
  }
  std::move(forget).Cancel();
  return std::shared_ptr<const VersionFiles>(files.get(), [core = core_, loaded, files](const VersionFiles*) {
    for (const NetworkId& id : loaded) core->placer.Forget(id);
  });
}

bool LocalExperts::Hosts(const NetworkId& id) const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [&id](const auto& lane) { return FindHosted(*lane->hosted(), id) != nullptr; });
}

NetworkMemoryStats LocalExperts::stats() const {
  return core_->placer.stats();
}

}  // namespace atl::router
