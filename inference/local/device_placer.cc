#include "inference/local/device_placer.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "common/base/status_macros.h"
#include "inference/hosted_networks.h"
#include "spdlog/spdlog.h"

namespace atl::router {
namespace {

// Before a network is loaded again whose load failed.
constexpr absl::Duration kLoadBackoff = absl::Seconds(30);
// A copy of a network is worth its load where it takes over so many seconds of lanes.
constexpr double kCopyWorth = 0.5;

}  // namespace

DevicePlacer::DevicePlacer(DevicePlacerOptions options, Memories devices, Clock* clock)
    : options_(options), devices_(std::move(devices)), clock_(clock) {
  if (devices_.size() < 2 || options_.interval <= absl::ZeroDuration()) return;
  thread_ = std::thread([this] { Work(); });
}

DevicePlacer::~DevicePlacer() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<size_t> DevicePlacer::Host(const NetworkId& id, int64_t bytes,
                                          const std::function<NetworkMemory::Load(size_t device)>& load_on) {
  size_t hosting = 0;
  absl::Cleanup forget = [&] {
    for (size_t i = 0; i < hosting; ++i) devices_[i]->Forget(id);
  };
  for (; hosting < devices_.size(); ++hosting) {
    ATOLL_RETURN_IF_ERROR(devices_[hosting]->Host(id, bytes, load_on(hosting)));
  }
  std::move(forget).Cancel();
  // Where it lies already, else where least lies.
  const auto order = [&](const NetworkMemory& memory) {
    const auto hosted = memory.hosted();
    const HostedNetwork* const found = FindHosted(*hosted, id);
    return std::pair(found == nullptr || !found->resident, memory.stats().resident_bytes);
  };
  size_t chosen = 0;
  for (size_t i = 1; i < devices_.size(); ++i) {
    if (order(*devices_[i]) < order(*devices_[chosen])) chosen = i;
  }
  devices_[chosen]->Expect(id);
  // Only now, or it would seem to lie nowhere.
  absl::MutexLock lock(&mutex_);
  Known& known = networks_[id];
  known.bytes = bytes;
  ++known.times;
  return chosen;
}

void DevicePlacer::Forget(const NetworkId& id) {
  for (const auto& memory : devices_) memory->Forget(id);
  absl::MutexLock lock(&mutex_);
  const auto known = networks_.find(id);
  if (known != networks_.end() && --known->second.times == 0) networks_.erase(known);
}

void DevicePlacer::Record(const NetworkId& id, absl::Duration computed) {
  const absl::Duration now = clock_->Monotonic();
  absl::MutexLock lock(&mutex_);
  const auto known = networks_.find(id);
  if (known != networks_.end()) known->second.use.Add(now, absl::ToDoubleSeconds(computed));
}

std::vector<placement::Holder> DevicePlacer::Holders() const {
  std::vector<placement::Holder> holders;
  for (const auto& memory : devices_) {
    placement::Holder& holder = holders.emplace_back();
    holder.memory_bytes = memory->stats().budget_bytes;
    const auto hosted = memory->hosted();
    for (const HostedNetwork& network : *hosted) {
      if (network.resident) holder.holding.push_back(network.id);
    }
  }
  return holders;
}

std::vector<placement::WantedNetwork> DevicePlacer::Wanted(const std::vector<placement::Holder>& holders) const {
  const absl::Duration now = clock_->Monotonic();
  double bytes = 0;
  double use = 0;
  for (const auto& [id, known] : networks_) {
    bytes += static_cast<double>(known.bytes);
    use += known.use.At(now);
  }
  // All that fits is shared out by use.
  const auto all = static_cast<double>(networks_.size());
  double replicas = 0;
  for (const placement::Holder& holder : holders) {
    const bool limited = holder.memory_bytes > 0 && bytes > 0;
    replicas += limited ? std::min(all, all * static_cast<double>(holder.memory_bytes) / bytes) : all;
  }
  std::vector<placement::WantedNetwork> wanted;
  for (const auto& [id, known] : networks_) {
    placement::WantedNetwork& network = wanted.emplace_back();
    network = {.network = id, .bytes = known.bytes, .use = known.use.At(now), .max_replicas = 1};
    if (use > 0) network.heat = network.use / use * replicas;
    if (options_.replicate) {
      network.max_replicas =
          static_cast<int32_t>(std::clamp(network.use / kCopyWorth, 1.0, static_cast<double>(holders.size())));
    }
  }
  return wanted;
}

bool DevicePlacer::Step() {
  std::vector<placement::Holder> holders;
  std::vector<placement::WantedNetwork> wanted;
  std::set<NetworkId> failed;
  {
    absl::MutexLock lock(&mutex_);
    holders = Holders();
    wanted = Wanted(holders);
    for (const auto& [id, known] : networks_) {
      if (known.failed_until > clock_->Monotonic()) failed.insert(id);
    }
  }
  const placement::Placement placement = placement::Place(holders, wanted, /*replicas=*/1);
  for (size_t device = 0; device < devices_.size(); ++device) {
    const std::vector<NetworkId>& holding = holders[device].holding;
    const std::set<NetworkId> keep(placement.assigned[device].begin(), placement.assigned[device].end());
    for (const NetworkId& id : keep) {
      if (std::binary_search(holding.begin(), holding.end(), id) || failed.contains(id)) continue;
      const absl::StatusOr<bool> loaded = devices_[device]->LoadAhead(id, keep);
      if (!loaded.ok()) {
        spdlog::warn("cannot load {} ahead: {}", Describe(id), std::string(loaded.status().message()));
        absl::MutexLock lock(&mutex_);
        const auto known = networks_.find(id);
        if (known != networks_.end()) known->second.failed_until = clock_->Monotonic() + kLoadBackoff;
        return false;
      }
      if (!*loaded) continue;
      spdlog::info("loaded {} on device {} ahead", Describe(id), device);
      return true;
    }
  }
  return false;
}

void DevicePlacer::Work() {
  for (;;) {
    const absl::Duration pause = Step() ? absl::ZeroDuration() : options_.interval;
    absl::MutexLock lock(&mutex_);
    if (clock_->AwaitUntil(&mutex_, absl::Condition(&stopping_), clock_->Monotonic() + pause)) return;
  }
}

NetworkMemoryStats DevicePlacer::stats() const {
  NetworkMemoryStats sum;
  std::map<NetworkId, int> copies;
  for (const auto& memory : devices_) {
    const NetworkMemoryStats stats = memory->stats();
    sum.budget_bytes += stats.budget_bytes;
    sum.resident_bytes += stats.resident_bytes;
    sum.networks = std::max(sum.networks, stats.networks);
    sum.resident += stats.resident;
    sum.loads += stats.loads;
    sum.loads_ahead += stats.loads_ahead;
    sum.evictions += stats.evictions;
    const auto hosted = memory->hosted();
    for (const HostedNetwork& network : *hosted) {
      if (network.resident && ++copies[network.id] == 2) ++sum.replicated;
    }
  }
  return sum;
}

}  // namespace atl::router
