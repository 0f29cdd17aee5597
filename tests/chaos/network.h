// Simulates machines on one bridge by network namespaces of this machine; their packets can be dropped.
//
// All namespaces are anonymous and end with the process, so there is no cleanup. The process must be alone in its own
// network namespace and have root's rights there (run.sh sees to both).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace atl::chaos {

enum class Loss { kNone, kAll, kIncoming, kOutgoing };

// Returns the command's output; UNAVAILABLE, with the output, when the command failed.
absl::StatusOr<std::string> OutputOf(const std::string& command);

// Not thread-safe.
class Network {
 public:
  // Makes the bridge, with this process on it at `address()`. UNAVAILABLE with a tool's error message.
  static absl::StatusOr<Network> Make();
  ~Network();
  Network(Network&& other) noexcept;
  Network& operator=(Network&&) = delete;

  static std::string address() { return "10.77.0.1"; }
  // Adds a machine; returns its address.
  absl::StatusOr<std::string> Add(const std::string& node);
  // Returns a prefix for a command that makes it run on that machine, as the same process.
  std::vector<std::string> Prefix(const std::string& node) const;

  // Sets which packets between this machine and all others are lost from now on.
  absl::Status Lose(const std::string& node, Loss loss);
  // Drops `percent` of the packets that the machine receives.
  absl::Status LoseSome(const std::string& node, int percent);

 private:
  struct Machine {
    int descriptor = -1;  // of its namespace
  };

  Network() = default;
  std::string PathOf(const std::string& node) const;
  absl::Status Rules(const std::string& node, const std::vector<std::string>& rules);

  std::map<std::string, Machine> machines_;
};

}  // namespace atl::chaos
