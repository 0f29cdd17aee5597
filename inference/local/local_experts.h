// Hosts experts and router networks in this process. Each device holds as many as its memory budget allows, and its
// lanes share them. Of several devices, each network lies on one, and the most used networks on more (device_placer.h).
// Does not depend on LibTorch, so that an expert server can host it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "inference/lane.h"
#include "inference/local/device_placer.h"
#include "inference/local/network_memory.h"
#include "inference/version_files.h"

namespace atl::router {

struct LocalExpertsOptions {
  std::string device = "cpu";  // a list, as model::OpenDevices reads it
  // Lanes of the processor, divided among its parts, at least one for each; a CUDA device has one lane.
  int threads = 1;
  int64_t memory_budget_bytes = 0;  // of weights, per device; 0: no limit
  DevicePlacerOptions placer;
};

// Thread-safe. Lanes may outlive it.
class LocalExperts {
 public:
  // `clock` must outlive the lanes. Returns INVALID_ARGUMENT that names the option, or the errors of
  // model::OpenDevices.
  static absl::StatusOr<std::unique_ptr<LocalExperts>> Create(const LocalExpertsOptions& options, Clock* clock);
  ~LocalExperts();

  // Hosts one network: reads it, checks hashes, shape and its answers to a probe, and keeps it in memory until it is
  // evicted. After an eviction it is read again on demand. It first lies on one device. Counted: the network stays
  // hosted until Forget was called as often. Blocks. NOT_FOUND or DATA_LOSS name the file, the expected and the found
  // value; RESOURCE_EXHAUSTED has reason EXPERT_DOES_NOT_FIT.
  absl::Status Load(std::shared_ptr<const VersionFiles> files, int32_t expert);
  // The last batch that uses the network frees its memory.
  void Forget(const NetworkId& id);
  // Returns whether a batch would find the network. False also if it was not forgotten, but its files were missing or
  // damaged when it was read again.
  bool Hosts(const NetworkId& id) const;
  // Loads all networks of a version and returns `files`; they are forgotten with the last reference to the result. If
  // one cannot be loaded, none stays hosted.
  absl::StatusOr<std::shared_ptr<const VersionFiles>> Host(std::shared_ptr<const VersionFiles> files);

  // Returns the lanes, the same at every call: the threads of the processor, or one per device. Every lane lists all
  // networks; a network that is not resident is loaded when a batch asks for it.
  const std::vector<std::shared_ptr<ExpertLane>>& lanes() const { return lanes_; }
  // Returns the fingerprint of the arithmetic of the first device's lanes.
  const std::string& fingerprint() const { return fingerprint_; }
  // Returns totals over all devices.
  NetworkMemoryStats stats() const;

 private:
  struct Core;
  explicit LocalExperts(std::shared_ptr<Core> core) : core_(std::move(core)) {}

  const std::shared_ptr<Core> core_;
  std::string fingerprint_;
  std::vector<std::shared_ptr<ExpertLane>> lanes_;
};

}  // namespace atl::router
