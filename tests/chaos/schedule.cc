#include "tests/chaos/schedule.h"

#include <algorithm>
#include <iterator>
#include <random>

#include <fmt/format.h>

namespace atl::chaos {
namespace {

// The standard fixes the engine's numbers but not those of its distributions.
class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  int Below(int n) { return static_cast<int>(engine_() % static_cast<uint64_t>(n)); }
  absl::Duration Between(absl::Duration low, absl::Duration high) {
    const int64_t steps = (high - low) / absl::Milliseconds(100);
    return low + absl::Milliseconds(100) * Below(static_cast<int>(std::max<int64_t>(steps, 0)) + 1);
  }

 private:
  std::mt19937_64 engine_;
};

class Scheduler {
 public:
  explicit Scheduler(const ScheduleOptions& options) : options_(options), dice_(options.seed) {}

  std::vector<Fault> Run() {
    std::vector<Fault> faults;
    for (int cycle = 0; cycle < options_.cycles; ++cycle) {
      const absl::Duration begin = cycle * options_.cycle;
      const absl::Duration loud = options_.cycle - options_.quiet;
      Fault first = Roll(cycle);
      first.at = begin + dice_.Between(absl::Seconds(1), absl::Seconds(5));
      first.lasts = std::min(first.lasts, begin + loud - first.at);
      faults.push_back(first);
      if (dice_.Below(2) == 0) continue;
      Fault second = Roll(cycle);
      while (second.node == first.node) second.node = Node(second.kind);
      second.at = first.at + dice_.Between(absl::ZeroDuration(), absl::Seconds(6));
      second.lasts = std::min(second.lasts, begin + loud - second.at);
      faults.push_back(second);
    }
    return faults;
  }

 private:
  // Every kind before the next round of all; beside a fault of the coordinator, none that is the coordinator's alone.
  FaultKind NextKind(const std::string& taken) {
    if (bag_.empty()) {
      bag_.assign(std::begin(kAllFaults), std::end(kAllFaults));
      // The most frequent faults in practice come most often.
      bag_.insert(bag_.end(), {FaultKind::kKill, FaultKind::kKill, FaultKind::kStop});
    }
    std::vector<size_t> fitting;
    for (size_t i = 0; i < bag_.size(); ++i) {
      if (taken != "coordinator" || !OnlyCoordinator(bag_[i])) fitting.push_back(i);
    }
    if (fitting.empty()) return FaultKind::kKill;
    const size_t index = fitting[dice_.Below(static_cast<int>(fitting.size()))];
    const FaultKind kind = bag_[index];
    bag_.erase(bag_.begin() + static_cast<std::ptrdiff_t>(index));
    return kind;
  }

  static bool OnlyCoordinator(FaultKind kind) {
    return kind == FaultKind::kSlow || kind == FaultKind::kFillDisk || kind == FaultKind::kJumpClock;
  }

  std::string Node(FaultKind kind) {
    if (OnlyCoordinator(kind)) return "coordinator";
    const int dice = dice_.Below(8);
    if (dice == 0) return "coordinator";
    if (dice == 1) return "router";
    return fmt::format("island-{}/{}", dice_.Below(options_.islands), dice_.Below(options_.ranks));
  }

  Fault Roll(int cycle) {
    Fault fault{.cycle = cycle};
    fault.kind = NextKind(cycle == cycle_ ? node_ : "");
    fault.node = Node(fault.kind);
    cycle_ = cycle;
    node_ = fault.node;
    fault.lasts =
        fault.kind == FaultKind::kKill ? absl::ZeroDuration() : dice_.Between(2 * options_.lease, 4 * options_.lease);
    if (fault.kind == FaultKind::kDrop) fault.amount = 20 + dice_.Below(41);
    if (fault.kind == FaultKind::kSlow) fault.amount = 200 + dice_.Below(1301);
    if (fault.kind == FaultKind::kJumpClock) fault.amount = (dice_.Below(2) == 0 ? -1 : 1) * (60 + dice_.Below(7200));
    return fault;
  }

  const ScheduleOptions options_;
  Dice dice_;
  std::vector<FaultKind> bag_;
  int cycle_ = -1;
  std::string node_;
};

}  // namespace

std::string ToString(FaultKind kind) {
  switch (kind) {
    case FaultKind::kKill:
      return "kill";
    case FaultKind::kStop:
      return "stop";
    case FaultKind::kCut:
      return "cut";
    case FaultKind::kDrop:
      return "drop";
    case FaultKind::kDeafen:
      return "deafen";
    case FaultKind::kMute:
      return "mute";
    case FaultKind::kSlow:
      return "slow";
    case FaultKind::kFillDisk:
      return "fill-disk";
    case FaultKind::kJumpClock:
      return "jump-clock";
  }
  return "";
}

std::string ToString(const Fault& fault) {
  std::string text = fmt::format("t={:.1f} {} {}", absl::ToDoubleSeconds(fault.at), ToString(fault.kind), fault.node);
  if (fault.kind == FaultKind::kDrop) text += fmt::format(" {} %", fault.amount);
  if (fault.kind == FaultKind::kSlow) text += fmt::format(" by {} ms", fault.amount);
  if (fault.kind == FaultKind::kJumpClock) text += fmt::format(" by {} s", fault.amount);
  if (fault.kind != FaultKind::kKill) text += fmt::format(" for {:.1f} s", absl::ToDoubleSeconds(fault.lasts));
  return text;
}

std::vector<Fault> MakeSchedule(const ScheduleOptions& options) {
  return Scheduler(options).Run();
}

}  // namespace atl::chaos
