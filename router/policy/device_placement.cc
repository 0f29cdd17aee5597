#include "router/policy/device_placement.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "fmt/format.h"

namespace atl::router {
namespace {

// Use is measured to such a share: copies make room for one another only where it differs by more.
constexpr double kNoise = 0.25;

class Decider {
 public:
  Decider(std::span<const PlacedNetwork> networks, std::span<const PlacementDevice> devices,
          const PlacementOptions& options)
      : devices_(devices), options_(options) {
    for (const PlacedNetwork& network : networks) networks_[network.id] = {.network = &network};
    for (const PlacementDevice& device : devices) {
      for (const ResidentNetwork& copy : device.resident) {
        if (const auto found = networks_.find(copy.id); found != networks_.end()) ++found->second.copies;
      }
    }
    for (const PlacementDevice& device : devices) loads_.push_back(LoadOf(device));
  }

  PlacementDecision Run() const;
  // Time of lanes that the device's copies are expected to take, per lane.
  absl::Duration load(size_t device) const { return loads_[device]; }

 private:
  struct Entry {
    const PlacedNetwork* network = nullptr;
    int64_t copies = 0;
    // What one of so many copies takes over.
    absl::Duration Share(int64_t of) const { return network->use / of; }
  };
  struct Room {
    size_t device = 0;
    std::vector<NetworkId> evict;
    absl::Duration lost;  // what the copies that make room take over
  };

  absl::Duration LoadOf(const PlacementDevice& device) const {
    absl::Duration load;
    for (const ResidentNetwork& copy : device.resident) {
      if (const auto found = networks_.find(copy.id); found != networks_.end()) {
        load += found->second.Share(found->second.copies);
      }
    }
    return load / std::max(1, device.lanes);
  }
  // How the device would hold one more copy; copies of others make room, those that take over least first.
  std::optional<Room> RoomOn(size_t device, const PlacedNetwork& network) const;
  // Where the network's next copy costs others least.
  std::optional<Room> BestRoom(const PlacedNetwork& network) const;
  // Worth its load, and the place that it takes.
  bool Pays(absl::Duration gain, absl::Duration load_time, absl::Duration lost) const {
    return gain > load_time + lost && gain > lost * (1 + kNoise);
  }
  // The load of a last copy's second one, after which the first makes room for a copy of `network` that takes over
  // `gain`.
  std::optional<PlacementLoad> MoveFor(const PlacedNetwork& network, absl::Duration gain) const;
  int64_t Held(size_t device) const {
    int64_t held = 0;
    for (const ResidentNetwork& copy : devices_[device].resident) held += copy.bytes;
    return held;
  }
  static std::string ReasonOf(int64_t copy, absl::Duration gain, const Room& room);
  bool Lies(const NetworkId& id, size_t device) const {
    const std::vector<ResidentNetwork>& resident = devices_[device].resident;
    return std::any_of(resident.begin(), resident.end(), [&](const auto& copy) { return copy.id == id; });
  }

  const std::span<const PlacementDevice> devices_;
  const PlacementOptions& options_;
  std::map<NetworkId, Entry> networks_;
  std::vector<absl::Duration> loads_;
};

std::optional<Decider::Room> Decider::RoomOn(size_t number, const PlacedNetwork& network) const {
  const PlacementDevice& device = devices_[number];
  if (Lies(network.id, number)) return std::nullopt;
  Room room{.device = number};
  int64_t missing = Held(number) + network.bytes - device.budget_bytes;
  std::vector<std::tuple<absl::Duration, NetworkId, int64_t>> copies;
  for (const ResidentNetwork& copy : device.resident) {
    const auto found = networks_.find(copy.id);
    if (copy.pins > 0 || found == networks_.end() || found->second.copies < 2) continue;
    copies.emplace_back(found->second.Share(found->second.copies), copy.id, copy.bytes);
  }
  if (device.budget_bytes == 0) return room;
  std::sort(copies.begin(), copies.end());
  for (const auto& [share, id, bytes] : copies) {
    if (missing <= 0) break;
    room.evict.push_back(id);
    room.lost += share;
    missing -= bytes;
  }
  if (missing > 0) return std::nullopt;
  return room;
}

std::optional<Decider::Room> Decider::BestRoom(const PlacedNetwork& network) const {
  std::optional<Room> best;
  const auto order = [&](const Room& room) { return std::tuple(room.lost, !room.evict.empty(), load(room.device)); };
  for (size_t device = 0; device < devices_.size(); ++device) {
    std::optional<Room> room = RoomOn(device, network);
    if (room && (!best || order(*room) < order(*best))) best = std::move(room);
  }
  return best;
}

std::optional<PlacementLoad> Decider::MoveFor(const PlacedNetwork& network, absl::Duration gain) const {
  std::optional<PlacementLoad> best;
  std::tuple<absl::Duration, absl::Duration> least;
  for (size_t from = 0; from < devices_.size(); ++from) {
    if (Lies(network.id, from)) continue;
    const int64_t missing = Held(from) + network.bytes - devices_[from].budget_bytes;
    for (const ResidentNetwork& copy : devices_[from].resident) {
      const auto found = networks_.find(copy.id);
      if (copy.pins > 0 || copy.bytes < missing || found == networks_.end() || found->second.copies != 1) continue;
      const PlacedNetwork& moved = *found->second.network;
      if (!moved.loadable || !Pays(gain, network.load_time + moved.load_time, found->second.Share(2))) continue;
      for (size_t to = 0; to < devices_.size(); ++to) {
        const int64_t budget = devices_[to].budget_bytes;
        if (to == from || (budget > 0 && Held(to) + copy.bytes > budget)) continue;
        const std::tuple order(moved.use, load(to));
        if (best && least <= order) continue;
        best = PlacementLoad{.network = copy.id, .device = to};
        least = order;
      }
    }
  }
  return best;
}

std::string Decider::ReasonOf(int64_t copy, absl::Duration gain, const Room& room) {
  const std::string what =
      copy == 1 ? "it lies nowhere" : fmt::format("copy {} takes over {}", copy, absl::FormatDuration(gain));
  if (room.evict.empty()) return what + ", and there is room";
  return fmt::format("{}; {} copies of others, that take over {}, make room", what, room.evict.size(),
                     absl::FormatDuration(room.lost));
}

PlacementDecision Decider::Run() const {
  // What its next copy takes over, all of it where it has none; the most first.
  std::vector<std::tuple<bool, absl::Duration, NetworkId, const Entry*>> order;
  for (const auto& [id, entry] : networks_) {
    if (!entry.network->loadable) continue;
    if (entry.copies > 0 && !options_.replicate) continue;
    order.emplace_back(entry.copies > 0, -entry.Share(entry.copies + 1), id, &entry);
  }
  std::sort(order.begin(), order.end());
  for (const auto& [copied, minus_gain, id, entry] : order) {
    const PlacedNetwork& network = *entry->network;
    const absl::Duration gain = -minus_gain;
    const std::optional<Room> room = BestRoom(network);
    if (room && (copied ? Pays(gain, network.load_time, room->lost)
                        : room->evict.empty() || std::max(gain, network.load_time) > room->lost)) {
      return {.load = PlacementLoad{.network = id, .device = room->device, .evict = room->evict},
              .reason = ReasonOf(copied ? entry->copies + 1 : 1, gain, *room)};
    }
    if (!copied) continue;
    if (std::optional<PlacementLoad> move = MoveFor(network, gain)) {
      return {.load = std::move(move), .reason = fmt::format("its place is for a copy of {}", Describe(id))};
    }
  }
  return {.reason = "no load would be worth its time"};
}

}  // namespace

absl::Duration NetworkUse::Faded(const Use& use, absl::Duration now) const {
  return use.recent * std::exp(-absl::FDivDuration(std::max(absl::ZeroDuration(), now - use.at), memory_));
}

void NetworkUse::Record(absl::Duration now, const NetworkId& id, absl::Duration computed) {
  Use& use = uses_[id];
  use = {.at = now, .recent = Faded(use, now) + computed};
}

absl::Duration NetworkUse::Recent(absl::Duration now, const NetworkId& id) const {
  const auto found = uses_.find(id);
  return found == uses_.end() ? absl::ZeroDuration() : Faded(found->second, now);
}

void NetworkUse::KeepOnly(std::span<const PlacedNetwork> networks) {
  std::set<NetworkId> kept;
  for (const PlacedNetwork& network : networks) kept.insert(network.id);
  std::erase_if(uses_, [&](const auto& use) { return !kept.contains(use.first); });
}

PlacementDecision DecidePlacement(std::span<const PlacedNetwork> networks, std::span<const PlacementDevice> devices,
                                  const PlacementOptions& options) {
  return Decider(networks, devices, options).Run();
}

size_t ChooseDevice(int64_t bytes, std::span<const PlacedNetwork> networks, std::span<const PlacementDevice> devices) {
  const PlacementOptions options;
  const Decider decider(networks, devices, options);
  using Order = std::tuple<int, absl::Duration, absl::Duration, int64_t>;
  std::optional<Order> best;
  size_t chosen = 0;
  for (size_t i = 0; i < devices.size(); ++i) {
    const PlacementDevice& device = devices[i];
    const ResidencyDecision room = DecideResidency(bytes, device.resident, device.budget_bytes);
    absl::Duration given_up = -absl::InfiniteDuration();
    int64_t held = 0;
    for (const ResidentNetwork& copy : device.resident) {
      held += copy.bytes;
      const bool gives_way = std::find(room.evict.begin(), room.evict.end(), copy.id) != room.evict.end();
      if (gives_way) given_up = std::max(given_up, copy.last_used);
    }
    const int waits = room.action == ResidencyAction::kLoad ? 0 : 1;
    const Order order(waits, given_up, decider.load(i), held / std::max(1, device.lanes));
    if (best && *best <= order) continue;
    best = order;
    chosen = i;
  }
  return chosen;
}

}  // namespace atl::router
