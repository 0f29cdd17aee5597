#include "tests/chaos/network.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/status_macros.h"

namespace atl::chaos {
namespace {

absl::Status Run(const std::string& command) {
  return OutputOf(command).status();
}

// A new network namespace, which lives as long as the descriptor.
absl::StatusOr<int> NewNamespace() {
  int descriptor = -1;
  int error = 0;
  // unshare moves the calling thread alone.
  std::thread maker([&] {
    if (unshare(CLONE_NEWNET) == 0) descriptor = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    error = errno;
  });
  maker.join();
  if (descriptor >= 0) return descriptor;
  return absl::ErrnoToStatus(error, "a network namespace");
}

}  // namespace

absl::StatusOr<std::string> OutputOf(const std::string& command) {
  FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return absl::ErrnoToStatus(errno, command);
  std::string said;
  char buffer[512];
  while (fgets(buffer, sizeof(buffer), pipe) != nullptr) said += buffer;
  const int status = pclose(pipe);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return said;
  return absl::UnavailableError(fmt::format("{}: {}", command, said));
}

absl::StatusOr<Network> Network::Make() {
  ATOLL_RETURN_IF_ERROR(Run("ip link set lo up && ip link add bridge0 type bridge && ip address add " + address() +
                            "/24 dev bridge0 && ip link set bridge0 up"));
  return Network();
}

Network::Network(Network&& other) noexcept : machines_(std::exchange(other.machines_, {})) {}

Network::~Network() {
  for (const auto& [node, machine] : machines_) close(machine.descriptor);
}

std::string Network::PathOf(const std::string& node) const {
  return fmt::format("/proc/{}/fd/{}", getpid(), machines_.at(node).descriptor);
}

std::vector<std::string> Network::Prefix(const std::string& node) const {
  return {"/usr/bin/nsenter", "--net=" + PathOf(node), "--"};
}

absl::StatusOr<std::string> Network::Add(const std::string& node) {
  ATOLL_ASSIGN_OR_RETURN(const int descriptor, NewNamespace());
  machines_[node] = {descriptor};
  const std::string address = fmt::format("10.77.0.{}", 1 + machines_.size());
  const std::string inside = fmt::format("{} ip ", fmt::join(Prefix(node), " "));
  const std::string wire = fmt::format("wire{}", machines_.size());
  ATOLL_RETURN_IF_ERROR(
      Run(fmt::format("ip link add {0} type veth peer name eth0 netns {1} && "
                      "ip link set {0} master bridge0 up",
                      wire, PathOf(node))));
  ATOLL_RETURN_IF_ERROR(
      Run(fmt::format("{0} link set lo up && {0} address add {1}/24 dev eth0 && "
                      "{0} link set eth0 up",
                      inside, address)));
  ATOLL_RETURN_IF_ERROR(Run(
      fmt::format("{} nft 'add table inet loss; add chain inet loss in {{ type filter hook input priority 0; }}; add "
                  "chain inet loss out {{ type filter hook output priority 0; }}'",
                  fmt::join(Prefix(node), " "))));
  return address;
}

absl::Status Network::Rules(const std::string& node, const std::vector<std::string>& rules) {
  std::string text = "flush chain inet loss in; flush chain inet loss out;";
  for (const std::string& rule : rules) text += " add rule inet loss " + rule + ";";
  return Run(fmt::format("{} nft '{}'", fmt::join(Prefix(node), " "), text));
}

absl::Status Network::Lose(const std::string& node, Loss loss) {
  std::vector<std::string> rules;
  if (loss == Loss::kAll || loss == Loss::kIncoming) rules.push_back("in iifname eth0 drop");
  if (loss == Loss::kAll || loss == Loss::kOutgoing) rules.push_back("out oifname eth0 drop");
  return Rules(node, rules);
}

absl::Status Network::LoseSome(const std::string& node, int percent) {
  return Rules(node, {fmt::format("in iifname eth0 numgen random mod 100 < {} drop", percent)});
}

}  // namespace atl::chaos
