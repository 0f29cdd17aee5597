#include "router/engine/device_placer.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "common/base/status_macros.h"
#include "spdlog/spdlog.h"

namespace atl::router {
namespace {

// Before a network is loaded again whose load failed.
constexpr absl::Duration kLoadBackoff = absl::Seconds(30);

}  // namespace

DevicePlacer::DevicePlacer(DevicePlacerOptions options, std::vector<Device> devices, Clock* clock)
    : options_(options), devices_(std::move(devices)), clock_(clock), use_(kUseMemory) {
  if (devices_.size() < 2 || options_.interval <= absl::ZeroDuration()) return;
  for (const Device& device : devices_) {
    watchers_.push_back(device.memory->watchers().Add([this] {
      absl::MutexLock lock(&mutex_);
      changed_ = true;
    }));
  }
  thread_ = std::thread([this] { Work(); });
}

DevicePlacer::~DevicePlacer() {
  for (size_t i = 0; i < watchers_.size(); ++i) devices_[i].memory->watchers().Remove(watchers_[i]);
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<size_t> DevicePlacer::Host(const NetworkId& id, int64_t bytes,
                                          const std::function<NetworkMemory::Load(size_t device)>& load_on) {
  // Or the network would seem to lie nowhere before it is expected where it goes first.
  {
    absl::MutexLock lock(&mutex_);
    ++hosting_;
  }
  const absl::Cleanup end = [this] {
    absl::MutexLock lock(&mutex_);
    --hosting_;
    ++generation_;
    changed_ = true;
  };
  const Snapshot before = Look();
  std::optional<size_t> chosen;
  for (size_t i = 0; i < devices_.size() && !chosen; ++i) {
    const auto& resident = before.devices[i].resident;
    if (std::any_of(resident.begin(), resident.end(), [&](const auto& copy) { return copy.id == id; })) chosen = i;
  }
  std::vector<NetworkMemory*> hosting;
  absl::Cleanup forget = [&] {
    for (NetworkMemory* memory : hosting) memory->Forget(id);
  };
  for (size_t i = 0; i < devices_.size(); ++i) {
    NetworkMemory* const memory = devices_[i].memory.get();
    ATOLL_RETURN_IF_ERROR(memory->Host(id, bytes, load_on(i)));
    hosting.push_back(memory);
  }
  if (!chosen) chosen = ChooseDevice(bytes, before.networks, before.devices);
  devices_[*chosen].memory->Expect(id);
  std::move(forget).Cancel();
  return *chosen;
}

void DevicePlacer::Forget(const NetworkId& id) {
  for (const Device& device : devices_) device.memory->Forget(id);
}

void DevicePlacer::Record(const NetworkId& id, absl::Duration computed) {
  const absl::Duration now = clock_->Monotonic();
  absl::MutexLock lock(&mutex_);
  use_.Record(now, id, computed);
  changed_ = true;
}

DevicePlacer::Snapshot DevicePlacer::Look() const {
  Snapshot snapshot;
  std::map<NetworkId, PlacedNetwork> networks;
  for (const Device& device : devices_) {
    NetworkMemoryView view = device.memory->view();
    for (const NetworkMemoryView::Hosted& hosted : view.hosted) {
      PlacedNetwork& network = networks[hosted.id];
      network.id = hosted.id;
      network.bytes = hosted.bytes;
      // Devices of one kind load alike; what was never loaded on one is known from another.
      network.load_time = std::max(network.load_time, hosted.load_time);
    }
    snapshot.devices.push_back({.budget_bytes = device.memory->stats().budget_bytes,
                                .lanes = device.lanes,
                                .resident = std::move(view.resident)});
  }
  for (auto& [id, network] : networks) snapshot.networks.push_back(std::move(network));
  const absl::Duration now = clock_->Monotonic();
  absl::MutexLock lock(&mutex_);
  for (PlacedNetwork& network : snapshot.networks) network.use = use_.Recent(now, network.id);
  return snapshot;
}

bool DevicePlacer::Settle(int64_t generation, Snapshot* snapshot) {
  const absl::Duration now = clock_->Monotonic();
  absl::MutexLock lock(&mutex_);
  if (hosting_ > 0 || generation_ != generation) return false;
  std::erase_if(failed_until_, [&](const auto& failed) { return failed.second <= now; });
  for (PlacedNetwork& network : snapshot->networks) network.loadable = !failed_until_.contains(network.id);
  use_.KeepOnly(snapshot->networks);
  return true;
}

void DevicePlacer::MarkCopies(const Snapshot& snapshot) {
  std::map<NetworkId, int> copies;
  for (const PlacementDevice& device : snapshot.devices) {
    for (const ResidentNetwork& copy : device.resident) ++copies[copy.id];
  }
  for (size_t i = 0; i < devices_.size(); ++i) {
    std::set<NetworkId> elsewhere;
    for (const ResidentNetwork& copy : snapshot.devices[i].resident) {
      if (copies[copy.id] > 1) elsewhere.insert(copy.id);
    }
    devices_[i].memory->SetElsewhere(std::move(elsewhere));
  }
}

bool DevicePlacer::Step() {
  int64_t generation = 0;
  {
    absl::MutexLock lock(&mutex_);
    changed_ = false;
    if (hosting_ > 0) return false;
    generation = generation_;
  }
  Snapshot snapshot = Look();
  if (!Settle(generation, &snapshot)) return false;
  MarkCopies(snapshot);
  const PlacementDecision decision = DecidePlacement(snapshot.networks, snapshot.devices, options_.placement);
  if (!decision.load) return false;
  const PlacementLoad& load = *decision.load;
  const absl::StatusOr<bool> loaded = devices_[load.device].memory->LoadAhead(load.network, load.evict);
  if (loaded.ok()) {
    if (*loaded) spdlog::info("loaded {} on device {} ahead: {}", Describe(load.network), load.device, decision.reason);
    return *loaded;
  }
  spdlog::warn("cannot load {} ahead: {}", Describe(load.network), std::string(loaded.status().message()));
  absl::MutexLock lock(&mutex_);
  failed_until_[load.network] = clock_->Monotonic() + kLoadBackoff;
  return false;
}

void DevicePlacer::Work() {
  const auto stopping = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; };
  const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || changed_; };
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&due));
    }
    while (Step()) {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
    }
    absl::MutexLock lock(&mutex_);
    if (clock_->AwaitUntil(&mutex_, absl::Condition(&stopping), clock_->Monotonic() + options_.interval)) return;
  }
}

NetworkMemoryStats DevicePlacer::stats() const {
  NetworkMemoryStats sum;
  for (const Device& device : devices_) {
    const NetworkMemoryStats stats = device.memory->stats();
    sum.budget_bytes += stats.budget_bytes;
    sum.resident_bytes += stats.resident_bytes;
    sum.networks = std::max(sum.networks, stats.networks);
    sum.resident += stats.resident;
    sum.loads += stats.loads;
    sum.loads_ahead += stats.loads_ahead;
    sum.evictions += stats.evictions;
  }
  std::map<NetworkId, int> copies;
  const Snapshot snapshot = Look();
  for (const PlacementDevice& device : snapshot.devices) {
    for (const ResidentNetwork& copy : device.resident) {
      if (++copies[copy.id] == 2) ++sum.replicated;
    }
  }
  return sum;
}

}  // namespace atl::router
