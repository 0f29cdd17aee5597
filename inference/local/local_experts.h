// Experts and router networks in this process: on every device as many as its memory budget allows, evaluated by the
// lanes of a device that share them. Of several devices each network lies on one, and those that are used most on more
// (device_placer.h). Knows no LibTorch, so that a server of experts can host it.
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
  // Lanes of the processor, shared by its parts, of which each has at least one; a CUDA device has one lane.
  int threads = 1;
  int64_t memory_budget_bytes = 0;  // of weights, per device; 0: no limit
  DevicePlacerOptions placer;
};

// Thread-safe. Lanes may outlive it.
class LocalExperts {
 public:
  // `clock` must outlive the lanes. INVALID_ARGUMENT names the option; what model::OpenDevices returns.
  static absl::StatusOr<std::unique_ptr<LocalExperts>> Create(const LocalExpertsOptions& options, Clock* clock);
  ~LocalExperts();

  // Hosts one network: reads it, checks hashes, shape and its answer to a probe, and keeps it in memory until others
  // have to have the room; then it is read again on demand. It lies on one device first. Counted: hosted until Forget
  // was called as often. Blocks. NOT_FOUND or DATA_LOSS name the file, the expected and the found; RESOURCE_EXHAUSTED
  // with reason EXPERT_DOES_NOT_FIT.
  absl::Status Load(std::shared_ptr<const VersionFiles> files, int32_t expert);
  // Memory goes with the last batch that uses it.
  void Forget(const NetworkId& id);
  // Whether a batch would find it. No longer, though it was not forgotten, where its files were gone or damaged when it
  // was to be read again.
  bool Hosts(const NetworkId& id) const;
  // Loads all networks of a version, which are forgotten with the last reference to the result, `files` again. When one
  // cannot be loaded none stays.
  absl::StatusOr<std::shared_ptr<const VersionFiles>> Host(std::shared_ptr<const VersionFiles> files);

  // The lanes, the same at every call: threads for the processor, else one per device. Every one lists all networks;
  // those that are not resident there are loaded when a batch asks for them.
  const std::vector<std::shared_ptr<ExpertLane>>& lanes() const { return lanes_; }
  // Of the arithmetic of the first device's lanes.
  const std::string& fingerprint() const { return fingerprint_; }
  // Over all devices.
  NetworkMemoryStats stats() const;

 private:
  struct Core;
  explicit LocalExperts(std::shared_ptr<Core> core) : core_(std::move(core)) {}

  const std::shared_ptr<Core> core_;
  std::string fingerprint_;
  std::vector<std::shared_ptr<ExpertLane>> lanes_;
};

}  // namespace atl::router
