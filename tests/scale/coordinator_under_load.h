// A coordinator process over a filled store, for measurements: started, killed and restarted at the same address.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/multiproc/process.h"

namespace atl::scale {

// Not thread-safe, but for address().
class CoordinatorUnderLoad {
 public:
  // `folder` holds store.db and blobs (filled_store.h). `flags` go to the process as they are.
  CoordinatorUnderLoad(std::string folder, std::vector<std::string> flags);

  // Returns once the process listens; UNAVAILABLE when it does not within a minute.
  absl::Status Start();
  void Kill() { process_->Kill(); }
  bool Running() { return process_->Running(); }

  // "host:port"; empty before the first start, and the same from then on.
  const std::string& address() const { return address_; }
  // Figures of the running process.
  absl::StatusOr<int64_t> ResidentBytes() const;
  absl::StatusOr<absl::Duration> ProcessorTime() const;
  std::string Log() const { return process_->Log(); }

 private:
  const std::string folder_;
  const std::vector<std::string> flags_;
  std::string address_;
  std::unique_ptr<testing_cluster::Process> process_;
};

}  // namespace atl::scale
