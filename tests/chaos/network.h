// Machines that are network namespaces of this one, on one bridge, whose packets can be lost.
//
// Everything is anonymous and goes with the process: there is nothing to clean up. The process must be alone in a
// network namespace of its own and may do what root does there (run.sh sees to both).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace atl::chaos {

enum class Loss { kNone, kAll, kIncoming, kOutgoing };

// What a command printed; UNAVAILABLE, with that, when it failed.
absl::StatusOr<std::string> OutputOf(const std::string& command);

// Not thread-safe.
class Network {
 public:
  // The bridge, and this process on it at `address()`. UNAVAILABLE with what a tool said.
  static absl::StatusOr<Network> Make();
  ~Network();
  Network(Network&& other) noexcept;
  Network& operator=(Network&&) = delete;

  static std::string address() { return "10.77.0.1"; }
  // A machine more; returns its address.
  absl::StatusOr<std::string> Add(const std::string& node);
  // Put before a command, makes it run on that machine, as the same process.
  std::vector<std::string> Prefix(const std::string& node) const;

  // What is lost between this machine and all others, from now on.
  absl::Status Lose(const std::string& node, Loss loss);
  // `percent` of the packets that it receives.
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
