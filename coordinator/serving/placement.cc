#include "coordinator/serving/placement.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

namespace atl::serving {
namespace {

struct Room {
  const PlacementServer* server = nullptr;
  int64_t used = 0;
  std::set<Network> assigned;

  int64_t left() const {
    return server->memory_bytes == 0 ? std::numeric_limits<int64_t>::max() : server->memory_bytes - used;
  }
  bool Takes(const WantedNetwork& wanted) const { return !assigned.contains(wanted.network) && wanted.bytes <= left(); }
  bool Hosts(const Network& network) const {
    return std::find(server->hosting.begin(), server->hosting.end(), network) != server->hosting.end();
  }
  void Assign(const WantedNetwork& wanted) {
    used += wanted.bytes;
    assigned.insert(wanted.network);
  }
};

class Placing {
 public:
  Placing(std::span<const PlacementServer> servers, std::span<const WantedNetwork> wanted) {
    for (const PlacementServer& server : servers) rooms_.push_back({.server = &server});
    std::sort(rooms_.begin(), rooms_.end(),
              [](const Room& a, const Room& b) { return a.server->server_id < b.server->server_id; });
    for (const WantedNetwork& network : wanted) order_.push_back(&network);
    // The hot ones choose first.
    std::sort(order_.begin(), order_.end(), [](const WantedNetwork* a, const WantedNetwork* b) {
      return std::tuple(-a->chosen, a->network) < std::tuple(-b->chosen, b->network);
    });
  }

  // Up to `target` replicas of each network: what lies somewhere first, so that newcomers do not drive it out.
  template <typename Target>
  void Round(const Target& target) {
    for (const bool hosted : {true, false}) {
      for (const WantedNetwork* wanted : order_) {
        while (Replicas(wanted->network) < target(*wanted)) {
          Room* const room = Choose(*wanted, hosted);
          if (room == nullptr) break;
          room->Assign(*wanted);
        }
      }
    }
  }

  void KeepHosted() {
    for (const WantedNetwork* wanted : order_) {
      for (Room& room : rooms_) {
        if (room.Hosts(wanted->network) && room.Takes(*wanted)) room.Assign(*wanted);
      }
    }
  }

  Placement Result() const {
    Placement placement;
    for (const Room& room : rooms_) {
      placement.assigned[room.server->server_id].assign(room.assigned.begin(), room.assigned.end());
    }
    for (const WantedNetwork* wanted : order_) {
      if (Replicas(wanted->network) > 0) continue;
      placement.unplaced.push_back(wanted->network);
      placement.lacking_bytes += wanted->bytes;
    }
    std::sort(placement.unplaced.begin(), placement.unplaced.end());
    return placement;
  }

 private:
  int32_t Replicas(const Network& network) const {
    return static_cast<int32_t>(
        std::count_if(rooms_.begin(), rooms_.end(), [&](const Room& room) { return room.assigned.contains(network); }));
  }
  Room* Choose(const WantedNetwork& wanted, bool hosted) {
    // From behind the last one that was chosen: equals take turns, so that a server that goes leaves its work to
    // several.
    Room* best = nullptr;
    for (size_t i = 0; i < rooms_.size(); ++i) {
      Room& room = rooms_[(next_ + i) % rooms_.size()];
      if (!room.Takes(wanted) || (hosted && !room.Hosts(wanted.network))) continue;
      if (best == nullptr ||
          std::tuple(-room.left(), room.assigned.size()) < std::tuple(-best->left(), best->assigned.size())) {
        best = &room;
      }
    }
    if (best != nullptr) next_ = static_cast<size_t>(best - rooms_.data()) + 1;
    return best;
  }

  std::vector<Room> rooms_;
  std::vector<const WantedNetwork*> order_;
  size_t next_ = 0;
};

// How often a network is asked against the average of its version's experts.
std::map<Network, double> Heat(std::span<const WantedNetwork> wanted) {
  std::map<std::string, std::pair<int64_t, int64_t>> versions;  // by digest: asked, experts
  for (const WantedNetwork& network : wanted) {
    if (network.network.expert < 0) continue;
    versions[network.network.digest].first += network.chosen;
    ++versions[network.network.digest].second;
  }
  std::map<Network, double> heat;
  for (const WantedNetwork& network : wanted) {
    const auto& [asked, experts] = versions[network.network.digest];
    const bool known = network.network.expert >= 0 && asked > 0;
    heat[network.network] =
        known ? static_cast<double>(network.chosen) * static_cast<double>(experts) / static_cast<double>(asked) : 1.0;
  }
  return heat;
}

}  // namespace

Placement Place(std::span<const PlacementServer> servers, std::span<const WantedNetwork> wanted,
                const PlacementOptions& options) {
  Placing placing(servers, wanted);
  const auto most = static_cast<int32_t>(servers.size());
  for (int32_t replicas = 1; replicas <= std::min(options.replicas, most); ++replicas) {
    placing.Round([&](const WantedNetwork&) { return replicas; });
  }
  const std::map<Network, double> heat = Heat(wanted);
  placing.Round([&](const WantedNetwork& network) {
    const double share = std::max(1.0, heat.at(network.network));
    return std::min(most, static_cast<int32_t>(options.replicas * share));
  });
  placing.KeepHosted();
  return placing.Result();
}

}  // namespace atl::serving
