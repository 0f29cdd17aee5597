// On which devices of one process its networks lie. Pure; every time is monotonic.
//
// Memory that batches ask for comes first (residency.h); what is decided here is loaded ahead, beside the batches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "router/policy/network_id.h"
#include "router/policy/residency.h"

namespace atl::router {

// Measured use fades with this time constant, and is expected to go on for as long.
constexpr absl::Duration kUseMemory = absl::Minutes(1);

struct PlacementOptions {
  bool replicate = true;  // false: every network lies on one device at most
};

struct PlacedNetwork {
  NetworkId id;
  int64_t bytes = 0;
  absl::Duration use;        // NetworkUse::Recent: what its lanes are expected to compute in the time to come
  absl::Duration load_time;  // measured, or estimated
  bool loadable = true;      // false: a load failed lately
};

// What networks were used lately. Not thread-safe.
class NetworkUse {
 public:
  explicit NetworkUse(absl::Duration memory) : memory_(memory) {}

  // Lanes computed for it for so long.
  void Record(absl::Duration now, const NetworkId& id, absl::Duration computed);
  // Time of lanes, about as much as one `memory` held: all of it soon after it was recorded, little of what is long
  // ago.
  absl::Duration Recent(absl::Duration now, const NetworkId& id) const;
  // Drops what is not of `networks`.
  void KeepOnly(std::span<const PlacedNetwork> networks);

 private:
  struct Use {
    absl::Duration at;
    absl::Duration recent;  // at that time
  };
  absl::Duration Faded(const Use& use, absl::Duration now) const;

  const absl::Duration memory_;
  std::map<NetworkId, Use> uses_;
};

struct PlacementDevice {
  int64_t budget_bytes = 0;  // 0: no limit
  int32_t lanes = 1;
  std::vector<ResidentNetwork> resident;
};

// A network to load on devices[device] once `evict` is gone from there.
struct PlacementLoad {
  NetworkId network;
  size_t device = 0;
  std::vector<NetworkId> evict;
  bool operator==(const PlacementLoad&) const = default;
};

struct PlacementDecision {
  std::optional<PlacementLoad> load;  // none: all lies where it should
  std::string reason;
};

// The next load, one at a time: to be asked again when it is done, and when use has changed.
//
// First every network lies somewhere; then the used ones on more devices in proportion to their use. A copy of a
// network is expected to take over its use divided by its copies. It is loaded where there is room and it takes over
// more time than its load takes; and in place of copies of others when it takes over so much more than those do. A
// network that lies nowhere takes the place of copies that take over less than its own use, or than the load that its
// first batch would wait for. The last copy of a network never makes room here, and never what is in use; but it is
// copied to a device with room first, where its place is worth that load too. Of several devices the one with least use
// per lane.
PlacementDecision DecidePlacement(std::span<const PlacedNetwork> networks, std::span<const PlacementDevice> devices,
                                  const PlacementOptions& options);

// The device for a network of `bytes` that lies nowhere and is wanted now, whatever gives way: where there is room, the
// one with least use per lane, then least in memory; else where what gives way was not used for longest. `devices` is
// not empty; no budget is smaller than `bytes`.
size_t ChooseDevice(int64_t bytes, std::span<const PlacedNetwork> networks, std::span<const PlacementDevice> devices);

}  // namespace atl::router
