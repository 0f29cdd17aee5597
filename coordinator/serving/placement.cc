#include "coordinator/serving/placement.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

namespace atl::serving {
namespace {

using Wanted = std::vector<const WantedNetwork*>;

// Whether a replica may go beyond a server's memory, into the room of versions that leave.
enum class Fit { kWithin, kOver };

struct Room {
  const PlacementServer* server = nullptr;
  std::set<Network> hosting;
  std::set<Network> assigned;
  int64_t used = 0;     // of all that is assigned
  int64_t lasting = 0;  // of what stays

  int64_t Left(const WantedNetwork& wanted, Fit fit) const {
    if (server->memory_bytes == 0) return std::numeric_limits<int64_t>::max();
    const bool over = fit == Fit::kOver && wanted.role != VersionRole::kLeaves;
    return server->memory_bytes - (over ? lasting : used);
  }
  bool Takes(const WantedNetwork& wanted, Fit fit) const {
    if (assigned.contains(wanted.network)) return false;
    if (wanted.bytes <= Left(wanted, fit)) return true;
    return fit == Fit::kOver && wanted.role == VersionRole::kLeaves && wanted.bytes <= server->memory_bytes;
  }
  void Assign(const WantedNetwork& wanted) {
    assigned.insert(wanted.network);
    used += wanted.bytes;
    if (wanted.role != VersionRole::kLeaves) lasting += wanted.bytes;
  }
  void Remove(const WantedNetwork& wanted) {
    if (assigned.erase(wanted.network) == 0) return;
    used -= wanted.bytes;
    if (wanted.role != VersionRole::kLeaves) lasting -= wanted.bytes;
  }
};

bool Contains(const std::vector<Network>& networks, const Network& network) {
  return std::find(networks.begin(), networks.end(), network) != networks.end();
}

class Placing {
 public:
  explicit Placing(std::span<const PlacementServer> servers) {
    for (const PlacementServer& server : servers) {
      rooms_.push_back({.server = &server, .hosting = {server.hosting.begin(), server.hosting.end()}});
    }
    std::sort(rooms_.begin(), rooms_.end(),
              [](const Room& a, const Room& b) { return a.server->server_id < b.server->server_id; });
  }

  // Up to `target` replicas of each network: on servers that host it, or on any.
  template <typename Target>
  void Fill(const Wanted& networks, const Target& target, bool hosted, Fit fit = Fit::kWithin) {
    for (const WantedNetwork* wanted : networks) {
      while (Replicas(*wanted) < target(*wanted)) {
        Room* const room = Choose(*wanted, hosted, fit);
        if (room == nullptr) break;
        room->Assign(*wanted);
        ++replicas_[wanted->network];
      }
    }
  }

  void KeepHosted(const Wanted& networks) {
    for (const WantedNetwork* wanted : networks) {
      for (Room& room : rooms_) {
        if (!room.hosting.contains(wanted->network) || !room.Takes(*wanted, Fit::kWithin)) continue;
        room.Assign(*wanted);
        ++replicas_[wanted->network];
      }
    }
  }

  // Servers with less than their share of all replicas get more of those that are asked most against their replicas.
  template <typename Heat>
  void Spread(const Wanted& networks, int32_t replicas, const Heat& heat) {
    if (rooms_.empty()) return;
    const size_t share = (networks.size() * static_cast<size_t>(replicas) + rooms_.size() - 1) / rooms_.size();
    for (Room& room : rooms_) {
      while (room.assigned.size() < share) {
        const WantedNetwork* best = nullptr;
        double best_need = 0;
        for (const WantedNetwork* wanted : networks) {
          if (!room.Takes(*wanted, Fit::kWithin) || Contains(room.server->failing, wanted->network)) continue;
          const double need = heat(*wanted) / std::max(1, Replicas(*wanted));
          if (best != nullptr && need <= best_need) continue;
          best = wanted;
          best_need = need;
        }
        if (best == nullptr) break;
        room.Assign(*best);
        ++replicas_[best->network];
      }
    }
  }

  void Remove(const Wanted& networks) {
    for (const WantedNetwork* wanted : networks) {
      for (Room& room : rooms_) room.Remove(*wanted);
      replicas_.erase(wanted->network);
    }
  }

  int32_t Replicas(const WantedNetwork& wanted) const {
    const auto found = replicas_.find(wanted.network);
    return found == replicas_.end() ? 0 : found->second;
  }

  std::map<std::string, std::vector<Network>> Assigned() const {
    std::map<std::string, std::vector<Network>> assigned;
    for (const Room& room : rooms_) {
      assigned[room.server->server_id].assign(room.assigned.begin(), room.assigned.end());
    }
    return assigned;
  }

  int64_t OverMemory() const {
    int64_t over = 0;
    for (const Room& room : rooms_) {
      if (room.server->memory_bytes > 0) over += std::max<int64_t>(0, room.used - room.server->memory_bytes);
    }
    return over;
  }

 private:
  Room* Choose(const WantedNetwork& wanted, bool hosted, Fit fit) {
    // From behind the last one that was chosen: equals take turns, so that a server that goes leaves its work to
    // several.
    const auto rank = [&](const Room& room) {
      return std::tuple(Contains(hosted ? room.server->loading : room.server->failing, wanted.network),
                        -room.Left(wanted, fit), room.assigned.size());
    };
    Room* best = nullptr;
    for (size_t i = 0; i < rooms_.size(); ++i) {
      Room& room = rooms_[(next_ + i) % rooms_.size()];
      if (!room.Takes(wanted, fit) || (hosted && !room.hosting.contains(wanted.network))) continue;
      if (best == nullptr || rank(room) < rank(*best)) best = &room;
    }
    if (best != nullptr) next_ = static_cast<size_t>(best - rooms_.data()) + 1;
    return best;
  }

  std::vector<Room> rooms_;
  std::map<Network, int32_t> replicas_;
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

// The versions that come and do not fit are taken out again; what of them did not fit.
std::vector<Network> PlaceComing(std::map<std::string, Wanted> coming, Placing* placing, Wanted* begun) {
  const auto once = [](const WantedNetwork&) { return 1; };
  std::vector<Network> no_room;
  for (auto& [digest, networks] : coming) {
    // It is all or nothing: the large ones first, for small ones find room between them.
    std::stable_sort(networks.begin(), networks.end(),
                     [](const WantedNetwork* a, const WantedNetwork* b) { return a->bytes > b->bytes; });
    placing->Fill(networks, once, /*hosted=*/false);
    placing->Fill(networks, once, /*hosted=*/false, Fit::kOver);
    const size_t before = no_room.size();
    for (const WantedNetwork* wanted : networks) {
      if (placing->Replicas(*wanted) == 0) no_room.push_back(wanted->network);
    }
    if (no_room.size() == before) {
      begun->insert(begun->end(), networks.begin(), networks.end());
    } else {
      placing->Remove(networks);
    }
  }
  return no_room;
}

// The hot ones choose first.
void SortByHeat(Wanted* networks) {
  std::sort(networks->begin(), networks->end(), [](const WantedNetwork* a, const WantedNetwork* b) {
    return std::tuple(-a->chosen, a->network) < std::tuple(-b->chosen, b->network);
  });
}

}  // namespace

Placement Place(std::span<const PlacementServer> servers, std::span<const WantedNetwork> wanted,
                const PlacementOptions& options) {
  Wanted all;
  Wanted begun;
  std::map<std::string, Wanted> coming;  // by digest
  for (const WantedNetwork& network : wanted) all.push_back(&network);
  SortByHeat(&all);
  for (const WantedNetwork* network : all) {
    if (network->role == VersionRole::kComes) {
      coming[network->network.digest].push_back(network);
    } else {
      begun.push_back(network);
    }
  }

  Placing placing(servers);
  const auto once = [](const WantedNetwork&) { return 1; };
  // What lies somewhere first, so that newcomers do not drive it out.
  for (const Fit fit : {Fit::kWithin, Fit::kOver}) placing.Fill(all, once, /*hosted=*/true, fit);
  for (const Fit fit : {Fit::kWithin, Fit::kOver}) placing.Fill(begun, once, /*hosted=*/false, fit);
  Placement placement;
  placement.no_room = PlaceComing(std::move(coming), &placing, &begun);
  SortByHeat(&begun);

  const auto most = static_cast<int32_t>(servers.size());
  for (int32_t replicas = 2; replicas <= std::min(options.replicas, most); ++replicas) {
    for (const bool hosted : {true, false}) {
      placing.Fill(
          begun, [&](const WantedNetwork&) { return replicas; }, hosted);
    }
  }
  const std::map<Network, double> heat = Heat(wanted);
  for (const bool hosted : {true, false}) {
    const double keep = hosted ? options.keep_hot : 1.0;
    const auto target = [&](const WantedNetwork& network) {
      const double share = std::max(1.0, heat.at(network.network) * keep);
      return static_cast<int32_t>(std::min<double>(most, options.replicas * share));
    };
    placing.Fill(begun, target, hosted);
  }
  placing.KeepHosted(all);
  placing.Spread(begun, options.replicas, [&](const WantedNetwork& network) { return heat.at(network.network); });

  placement.assigned = placing.Assigned();
  placement.over_memory_bytes = placing.OverMemory();
  for (const WantedNetwork* network : all) {
    const bool waits = network->role == VersionRole::kComes;
    if (placing.Replicas(*network) > 0) continue;
    placement.unplaced.push_back(network->network);
    if (!waits) placement.no_room.push_back(network->network);
  }
  std::sort(placement.unplaced.begin(), placement.unplaced.end());
  std::sort(placement.no_room.begin(), placement.no_room.end());
  for (const WantedNetwork* network : all) {
    if (Contains(placement.no_room, network->network)) placement.lacking_bytes += network->bytes;
  }
  return placement;
}

}  // namespace atl::serving
