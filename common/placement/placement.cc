#include "common/placement/placement.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace atl::placement {
namespace {

using Wanted = std::vector<const WantedNetwork*>;

// A further replica that is there is given up for others only when it would take this many times as much heat to want
// it.
constexpr double kKeepHot = 1.25;

// Whether a replica may go beyond a holder's memory, into the room of versions that leave.
enum class Fit { kWithin, kOver };

struct Room {
  const Holder* holder = nullptr;
  std::set<NetworkId> holding;
  std::set<NetworkId> assigned;
  int64_t used = 0;     // by all that is assigned
  int64_t lasting = 0;  // by what stays
  int32_t hot = 0;      // assigned networks that are to have further replicas elsewhere

  int64_t Left(const WantedNetwork& wanted, Fit fit) const {
    if (holder->memory_bytes == 0) return std::numeric_limits<int64_t>::max();
    const bool over = fit == Fit::kOver && wanted.role != VersionRole::kLeaves;
    return holder->memory_bytes - (over ? lasting : used);
  }
  bool Takes(const WantedNetwork& wanted, Fit fit) const {
    if (assigned.contains(wanted.network)) return false;
    if (wanted.bytes <= Left(wanted, fit)) return true;
    return fit == Fit::kOver && wanted.role == VersionRole::kLeaves && wanted.bytes <= holder->memory_bytes;
  }
  int64_t OverMemory() const {
    return holder->memory_bytes == 0 ? 0 : std::max<int64_t>(0, used - holder->memory_bytes);
  }
};

bool Contains(const std::vector<NetworkId>& networks, const NetworkId& network) {
  return std::find(networks.begin(), networks.end(), network) != networks.end();
}

class Placing {
 public:
  Placing(std::span<const Holder> holders, int32_t replicas) : base_(std::max(1, replicas)) {
    for (const Holder& holder : holders) {
      rooms_.push_back({.holder = &holder, .holding = {holder.holding.begin(), holder.holding.end()}});
    }
  }

  // Up to `target` replicas of each network: on holders that have it, or on any.
  void Fill(const Wanted& networks, int32_t target, bool held, Fit fit = Fit::kWithin) {
    for (const WantedNetwork* wanted : networks) FillOne(*wanted, target, held, fit);
  }

  // Replicas of hot networks in proportion to their heat.
  void FillHot(const Wanted& networks, bool held) {
    for (const WantedNetwork* wanted : networks) {
      FillOne(*wanted, HotReplicas(*wanted, held ? kKeepHot : 1.0), held, Fit::kWithin);
    }
  }

  // If only replicas of others keep out the hottest network that lacks one, moves one of these to a holder with room
  // first. It gives way once it is loaded there: a later call finds it on both.
  void MakeWay(const Wanted& networks) {
    const auto lacks = [&](const WantedNetwork* wanted) {
      return IsHot(*wanted) && Replicas(*wanted) < std::min(HotReplicas(*wanted, 1.0), wanted->max_replicas);
    };
    const auto hot = std::find_if(networks.begin(), networks.end(), lacks);
    if (hot == networks.end()) return;
    for (auto least = networks.rbegin(); least != networks.rend(); ++least) {
      for (const Room& from : rooms_) {
        if (!from.assigned.contains((*least)->network) || from.assigned.contains((*hot)->network)) continue;
        if (from.Left(**hot, Fit::kWithin) < (*hot)->bytes - (*least)->bytes) continue;
        const auto takes = [&](const Room& room) {
          return room.Takes(**least, Fit::kWithin) && !Contains(room.holder->failing, (*least)->network);
        };
        const auto to = std::find_if(rooms_.begin(), rooms_.end(), takes);
        if (to != rooms_.end()) return Assign(**least, &*to);
      }
    }
  }

  void KeepHeld(const Wanted& networks) {
    for (const WantedNetwork* wanted : networks) {
      for (Room& room : rooms_) {
        if (room.holding.contains(wanted->network) && room.Takes(*wanted, Fit::kWithin)) Assign(*wanted, &room);
      }
    }
  }

  // Gives holders with less than their share of all replicas more of the networks with the most use per replica.
  void Spread(const Wanted& networks) {
    if (rooms_.empty()) return;
    double replicas = 0;
    for (const WantedNetwork* wanted : networks) replicas += wanted->heat * base_;
    // Sums of fractions are not exact.
    const double share = std::ceil(replicas / static_cast<double>(rooms_.size()) - 1e-6);
    for (Room& room : rooms_) {
      while (static_cast<double>(room.assigned.size()) < share) {
        const WantedNetwork* const most = MostNeeded(networks, room);
        if (most == nullptr) break;
        Assign(*most, &room);
      }
    }
  }

  void Remove(const Wanted& networks) {
    for (const WantedNetwork* wanted : networks) {
      for (Room& room : rooms_) {
        if (room.assigned.erase(wanted->network) > 0) Count(*wanted, -1, &room);
      }
    }
  }

  int32_t Replicas(const WantedNetwork& wanted) const {
    const auto found = replicas_.find(wanted.network);
    return found == replicas_.end() ? 0 : found->second;
  }

  const std::vector<Room>& rooms() const { return rooms_; }

 private:
  int32_t HotReplicas(const WantedNetwork& wanted, double keep) const {
    const double share = std::max(1.0, wanted.heat * keep);
    return static_cast<int32_t>(std::min(static_cast<double>(rooms_.size()), base_ * share));
  }

  bool IsHot(const WantedNetwork& wanted) const {
    return std::min(HotReplicas(wanted, 1.0), wanted.max_replicas) > base_;
  }

  void FillOne(const WantedNetwork& wanted, int32_t target, bool held, Fit fit) {
    while (Replicas(wanted) < std::min(target, wanted.max_replicas)) {
      Room* const room = Choose(wanted, held, fit);
      if (room == nullptr) return;
      Assign(wanted, room);
    }
  }

  Room* Choose(const WantedNetwork& wanted, bool held, Fit fit) {
    // Searches from behind the last chosen holder: equal holders take turns, so that the work of a lost holder spreads
    // over several. Among several that have the network, it stays beside the networks whose further replicas need room
    // elsewhere.
    const auto rank = [&](const Room& room) {
      return std::tuple(Contains(held ? room.holder->loading : room.holder->failing, wanted.network),
                        held ? -room.hot : 0, -room.Left(wanted, fit), room.assigned.size());
    };
    Room* best = nullptr;
    for (size_t i = 0; i < rooms_.size(); ++i) {
      Room& room = rooms_[(next_ + i) % rooms_.size()];
      if (!room.Takes(wanted, fit) || (held && !room.holding.contains(wanted.network))) continue;
      if (best == nullptr || rank(room) < rank(*best)) best = &room;
    }
    if (best != nullptr) next_ = static_cast<size_t>(best - rooms_.data()) + 1;
    return best;
  }

  const WantedNetwork* MostNeeded(const Wanted& networks, const Room& room) const {
    const WantedNetwork* most = nullptr;
    double most_need = 0;
    for (const WantedNetwork* wanted : networks) {
      if (Replicas(*wanted) >= wanted->max_replicas || !room.Takes(*wanted, Fit::kWithin)) continue;
      if (Contains(room.holder->failing, wanted->network)) continue;
      const double need = wanted->heat / std::max(1, Replicas(*wanted));
      if (most != nullptr && need <= most_need) continue;
      most = wanted;
      most_need = need;
    }
    return most;
  }

  void Assign(const WantedNetwork& wanted, Room* room) {
    room->assigned.insert(wanted.network);
    Count(wanted, 1, room);
  }
  void Count(const WantedNetwork& wanted, int32_t replicas, Room* room) {
    room->used += replicas * wanted.bytes;
    if (wanted.role != VersionRole::kLeaves) room->lasting += replicas * wanted.bytes;
    if (IsHot(wanted)) room->hot += replicas;
    replicas_[wanted.network] += replicas;
  }

  const int32_t base_;
  std::vector<Room> rooms_;
  std::map<NetworkId, int32_t> replicas_;
  size_t next_ = 0;
};

// The versions that come and do not fit are taken out again; what of them did not fit.
std::vector<NetworkId> PlaceComing(std::map<std::string, Wanted> coming, Placing* placing, Wanted* begun) {
  std::vector<NetworkId> no_room;
  for (auto& [digest, networks] : coming) {
    // Places all or none: large networks first, because small ones fit between them.
    std::stable_sort(networks.begin(), networks.end(),
                     [](const WantedNetwork* a, const WantedNetwork* b) { return a->bytes > b->bytes; });
    for (const Fit fit : {Fit::kWithin, Fit::kOver}) placing->Fill(networks, 1, /*held=*/false, fit);
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

void SortByUse(Wanted* networks) {
  std::sort(networks->begin(), networks->end(), [](const WantedNetwork* a, const WantedNetwork* b) {
    return std::tuple(-a->use, a->network) < std::tuple(-b->use, b->network);
  });
}

}  // namespace

Placement Place(std::span<const Holder> holders, std::span<const WantedNetwork> wanted, int32_t replicas) {
  Wanted all;
  Wanted begun;
  std::map<std::string, Wanted> coming;  // by digest
  for (const WantedNetwork& network : wanted) all.push_back(&network);
  SortByUse(&all);
  for (const WantedNetwork* network : all) {
    if (network->role == VersionRole::kComes) {
      coming[network->network.digest].push_back(network);
    } else {
      begun.push_back(network);
    }
  }

  Placing placing(holders, replicas);
  // Held networks are placed first, so that new ones do not evict them.
  for (const Fit fit : {Fit::kWithin, Fit::kOver}) placing.Fill(all, 1, /*held=*/true, fit);
  for (const Fit fit : {Fit::kWithin, Fit::kOver}) placing.Fill(begun, 1, /*held=*/false, fit);
  Placement placement;
  placement.no_room = PlaceComing(std::move(coming), &placing, &begun);
  SortByUse(&begun);

  for (int32_t each = 2; each <= std::min(replicas, static_cast<int32_t>(holders.size())); ++each) {
    for (const bool held : {true, false}) placing.Fill(begun, each, held);
  }
  for (const bool held : {true, false}) placing.FillHot(begun, held);
  placing.MakeWay(begun);
  placing.KeepHeld(all);
  placing.Spread(begun);

  for (const Room& room : placing.rooms()) {
    placement.assigned.emplace_back(room.assigned.begin(), room.assigned.end());
    placement.over_memory_bytes += room.OverMemory();
  }
  for (const WantedNetwork* network : all) {
    if (placing.Replicas(*network) > 0) continue;
    placement.unplaced.push_back(network->network);
    if (network->role != VersionRole::kComes) placement.no_room.push_back(network->network);
  }
  std::sort(placement.unplaced.begin(), placement.unplaced.end());
  std::sort(placement.no_room.begin(), placement.no_room.end());
  return placement;
}

}  // namespace atl::placement
