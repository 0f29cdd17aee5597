#include "tests/chaos/world.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>

#include <fmt/format.h>

#include "absl/time/clock.h"
#include "common/base/status_macros.h"

namespace atl::chaos {
namespace {

using testing_cluster::Process;

constexpr int kCoordinatorPort = 7000;
constexpr int kLeaderPort = 7100;
constexpr int kRouterPort = 7200;

std::string RankName(int island, int rank) {
  return fmt::format("island-{}/{}", island, rank);
}

}  // namespace

absl::StatusOr<std::unique_ptr<World>> World::Make(WorldOptions options) {
  ATOLL_ASSIGN_OR_RETURN(Network network, Network::Make());
  std::unique_ptr<World> world(new World(std::move(options), std::move(network)));
  ATOLL_RETURN_IF_ERROR(world->Prepare());
  return world;
}

World::World(WorldOptions options, Network network) : options_(std::move(options)), network_(std::move(network)) {}

World::~World() = default;

absl::Status World::Prepare() {
  for (const char* folder : {"store", "logs", "blobs"}) {
    std::filesystem::create_directories(options_.folder + "/" + folder);
  }
  // A disk of its own, so that it can be full alone. Gone with the mount namespace.
  const std::string size = fmt::format("size={}", options_.store_disk_bytes);
  if (mount("tmpfs", (options_.folder + "/store").c_str(), "tmpfs", 0, size.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, "a tmpfs for the store");
  }
  std::ofstream(options_.folder + "/secret") << "the islands' secret";
  ATOLL_ASSIGN_OR_RETURN(blobs_, storage::BlobStore::Open("file://" + options_.folder + "/blobs"));
  ATOLL_ASSIGN_OR_RETURN(addresses_["coordinator"], network_.Add("coordinator"));
  ATOLL_ASSIGN_OR_RETURN(addresses_["router"], network_.Add("router"));
  for (int island = 0; island < options_.islands; ++island) {
    for (int rank = 0; rank < options_.ranks; ++rank) {
      const std::string machine = MachineOf(RankName(island, rank));
      if (addresses_.contains(machine)) continue;
      ATOLL_ASSIGN_OR_RETURN(addresses_[machine], network_.Add(machine));
    }
  }
  proxy_ = std::make_unique<testing_cluster::OneWayProxy>(fmt::format("{}:{}", Network::address(), kCoordinatorPort),
                                                          addresses_.at("coordinator"), kCoordinatorPort);
  // The bridge is a private network.
  for (const char* program : {"atoll-coordinator", "atoll-router", "atoll-worker"}) {
    ATOLL_ASSIGN_OR_RETURN(network_flags_[program],
                           KnownFlags(program, {"--insecure-network", "--trusted-data-network"}));
  }
  Start("coordinator");
  Start("router");
  for (int island = 0; island < options_.islands; ++island) {
    for (int rank = 0; rank < options_.ranks; ++rank) Start(RankName(island, rank));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> World::KnownFlags(const std::string& program,
                                                           const std::vector<std::string>& wanted) const {
  ATOLL_ASSIGN_OR_RETURN(const std::string help, OutputOf(options_.programs + "/" + program + " --help"));
  std::vector<std::string> known;
  for (const std::string& flag : wanted) {
    if (help.find(flag) != std::string::npos) known.push_back(flag);
  }
  return known;
}

std::string World::MachineOf(const std::string& node) const {
  return options_.machine_per_rank ? node : node.substr(0, node.find('/'));
}

std::vector<std::string> World::CommandOf(const std::string& node) const {
  const std::string& address = addresses_.at(MachineOf(node));
  const auto at = [](const std::string& host, int port) { return fmt::format("{}:{}", host, port); };
  std::vector<std::string> command = network_.Prefix(MachineOf(node));
  const auto add = [&](const std::vector<std::string>& words) {
    command.insert(command.end(), words.begin(), words.end());
  };
  if (node == "coordinator") {
    add({options_.programs + "/atoll-coordinator", "--listen", at(address, kCoordinatorPort), "--store", store_path()});
    add({"--blob-store", blobs_->root(), "--lease", absl::FormatDuration(options_.lease), "--collect-every", "5s",
         "--collect-age", "20s"});
    add(network_flags_.at("atoll-coordinator"));
    return command;
  }
  if (node == "router") {
    add({options_.programs + "/atoll-router", "--listen", at(address, kRouterPort), "--coordinator",
         at(addresses_.at("coordinator"), kCoordinatorPort), "--blob-store", blobs_->root(), "--threads", "1"});
    add(network_flags_.at("atoll-router"));
    return command;
  }
  const std::string island = node.substr(0, node.find('/'));
  add({options_.programs + "/atoll-worker", "--coordinator", at(Network::address(), kCoordinatorPort)});
  add({"--blob-store", blobs_->root(), "--island-id", island, "--rank", node.substr(island.size() + 1)});
  add({"--ranks", fmt::format("{}", options_.ranks), "--leader",
       at(addresses_.at(MachineOf(island + "/0")), kLeaderPort)});
  add({"--island-secret-file", options_.folder + "/secret", "--threads", "1", "--interface", "eth0"});
  add({"--rejoin-seconds", "5", "--stop-seconds", "5"});
  add(network_flags_.at("atoll-worker"));
  return command;
}

void World::Start(const std::string& node) {
  std::string log = node;
  std::replace(log.begin(), log.end(), '/', '-');
  std::vector<std::string> environment = {"OMP_NUM_THREADS=1"};
  if (node == "coordinator") environment.push_back("ATOLL_CLOCK_OFFSET_FILE=" + options_.folder + "/clock_offset");
  nodes_[node] = Node{.process = std::make_unique<Process>(
                          CommandOf(node), fmt::format("{}/logs/{}.log", options_.folder, log), environment)};
}

std::vector<std::string> World::LeaderLogs() const {
  std::vector<std::string> logs;
  for (int island = 0; island < options_.islands; ++island) {
    logs.push_back(nodes_.at(RankName(island, 0)).process->log_path());
  }
  return logs;
}

absl::Status World::FillDisk() {
  const int filler = open((options_.folder + "/store/filler").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (filler < 0) return absl::ErrnoToStatus(errno, "filling the store's disk");
  const std::string zeros(4096, '\0');
  while (write(filler, zeros.data(), zeros.size()) > 0) {
  }
  close(filler);
  return absl::OkStatus();
}

absl::Status World::Begin(const Fault& fault) {
  Node& node = nodes_.at(fault.node);
  switch (fault.kind) {
    case FaultKind::kKill:
      node.killed = true;
      node.process->Signal(SIGKILL);
      return absl::OkStatus();
    case FaultKind::kStop:
      node.process->Signal(SIGSTOP);
      return absl::OkStatus();
    case FaultKind::kCut:
      return network_.Lose(MachineOf(fault.node), Loss::kAll);
    case FaultKind::kDrop:
      return network_.LoseSome(MachineOf(fault.node), fault.amount);
    case FaultKind::kDeafen:
      return network_.Lose(MachineOf(fault.node), Loss::kIncoming);
    case FaultKind::kMute:
      return network_.Lose(MachineOf(fault.node), Loss::kOutgoing);
    case FaultKind::kSlow:
      proxy_->Delay(absl::Milliseconds(fault.amount));
      return absl::OkStatus();
    case FaultKind::kFillDisk:
      return FillDisk();
    case FaultKind::kJumpClock:
      std::ofstream(options_.folder + "/clock_offset") << fault.amount;
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status World::End(const Fault& fault) {
  switch (fault.kind) {
    case FaultKind::kKill:
      return absl::OkStatus();
    case FaultKind::kStop:
      nodes_.at(fault.node).process->Signal(SIGCONT);
      return absl::OkStatus();
    case FaultKind::kCut:
    case FaultKind::kDrop:
    case FaultKind::kDeafen:
    case FaultKind::kMute:
      return network_.Lose(MachineOf(fault.node), Loss::kNone);
    case FaultKind::kSlow:
      proxy_->Heal();
      return absl::OkStatus();
    case FaultKind::kFillDisk:
      std::filesystem::remove(options_.folder + "/store/filler");
      return absl::OkStatus();
    case FaultKind::kJumpClock:
      std::filesystem::remove(options_.folder + "/clock_offset");
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

std::vector<std::string> World::Supervise() {
  std::vector<std::string> ended;
  const absl::Time now = absl::Now();
  std::vector<std::string> due;
  for (auto& [name, node] : nodes_) {
    if (node.process->Running()) continue;
    if (node.ended == absl::InfiniteFuture()) {
      node.ended = now;
      if (!node.killed) ended.push_back(fmt::format("{} ended with {}", name, *node.process->Wait({})));
    } else if (now - node.ended >= options_.restart_delay) {
      due.push_back(name);
    }
  }
  for (const std::string& name : due) Start(name);
  return ended;
}

std::vector<std::string> World::Stop(absl::Duration patience) {
  std::vector<std::string> late;
  const auto stop = [&](bool coordinator) {
    for (auto& [name, node] : nodes_) {
      if ((name == "coordinator") == coordinator) node.process->Signal(SIGTERM);
    }
    const absl::Time deadline = absl::Now() + patience;
    for (auto& [name, node] : nodes_) {
      if ((name == "coordinator") != coordinator) continue;
      if (!node.process->Wait(deadline - absl::Now()).has_value()) late.push_back(name);
      node.process->Kill();
    }
  };
  stop(false);
  stop(true);
  return late;
}

}  // namespace atl::chaos
