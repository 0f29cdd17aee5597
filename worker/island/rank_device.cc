#include "worker/island/rank_device.h"

#include <charconv>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "common/base/errors.h"

namespace atl::worker {
namespace {

constexpr std::string_view kCuda = "cuda";

// A whole number of at least 0.
std::optional<int32_t> Number(std::string_view text) {
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

absl::Status Taken(const DeviceSeeker& seeker, const DeviceSeeker& holder, const RankDevice& device) {
  const bool only = seeker.devices.size() == 1;
  return MakeError(
      absl::StatusCode::kFailedPrecondition, "DEVICE_TAKEN",
      fmt::format(
          "rank {} ({}): expected a device that no other rank has, found {} ({}) with rank {} ({}){}. Give each "
          "rank a device of its own: --device cuda:N, LOCAL_RANK or SLURM_LOCALID, or start fewer ranks",
          seeker.rank, seeker.where, device.label, device.id, holder.rank, holder.where,
          only ? "" : fmt::format(" and the others of its {} devices taken too", seeker.devices.size())));
}

}  // namespace

absl::StatusOr<std::optional<LocalRank>> FindLocalRank(const RankIdentity& identity, const Environment& environment) {
  for (const char* const variable : {"LOCAL_RANK", "SLURM_LOCALID"}) {
    // In a batch script SLURM_LOCALID is 0 in every process that the script starts itself.
    if (variable == std::string_view("SLURM_LOCALID") && identity.source != "slurm") continue;
    const auto found = environment.find(variable);
    if (found == environment.end() || found->second.empty()) continue;
    if (const auto number = Number(found->second)) return LocalRank{.variable = variable, .number = *number};
    return MakeError(absl::StatusCode::kInvalidArgument, "RANK_UNCLEAR",
                     fmt::format("{}: expected a number of at least 0, found '{}'", variable, found->second));
  }
  return std::nullopt;
}

absl::StatusOr<DeviceChoice> ChooseDevice(std::string_view flag, const std::optional<LocalRank>& local,
                                          int32_t visible) {
  if (flag == "cpu") return DeviceChoice{.reason = "--device cpu"};
  const bool numbered = flag.starts_with("cuda:");
  const std::optional<int32_t> number = numbered ? Number(flag.substr(kCuda.size() + 1)) : std::nullopt;
  if (numbered ? !number.has_value() : flag != kCuda) {
    return FieldError("--device", "DEVICE_UNKNOWN",
                      fmt::format("expected cpu, cuda or cuda:N (lists are for --serve), found '{}'", flag));
  }
  if (number.value_or(0) >= visible) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "DEVICE_UNAVAILABLE",
                     fmt::format("--device {}: this process sees {} CUDA devices", flag, visible));
  }
  if (number) return DeviceChoice{.numbers = {*number}, .reason = fmt::format("--device {}", flag)};
  if (visible == 1) return DeviceChoice{.numbers = {0}, .reason = "the only device that this process sees"};
  if (local && local->number < visible) {
    return DeviceChoice{.numbers = {local->number}, .reason = fmt::format("{}={}", local->variable, local->number)};
  }
  DeviceChoice choice;
  choice.numbers.resize(visible);
  std::iota(choice.numbers.begin(), choice.numbers.end(), 0);
  choice.reason =
      local ? fmt::format("the leader's choice: {}={} and {} devices", local->variable, local->number, visible)
            : "the leader's choice";
  return choice;
}

absl::StatusOr<std::vector<RankDevice>> AssignDevices(const std::vector<DeviceSeeker>& seekers) {
  std::map<std::string, const DeviceSeeker*> holders;  // by device id
  std::vector<RankDevice> given(seekers.size());
  for (const bool decided : {true, false}) {
    for (size_t i = 0; i < seekers.size(); ++i) {
      const DeviceSeeker& seeker = seekers[i];
      if (seeker.devices.empty() || (seeker.devices.size() == 1) != decided) continue;
      for (const RankDevice& device : seeker.devices) {
        if (!holders.emplace(device.id, &seeker).second) continue;
        given[i] = device;
        break;
      }
      if (given[i].id.empty()) return Taken(seeker, *holders.at(seeker.devices[0].id), seeker.devices[0]);
    }
  }
  return given;
}

}  // namespace atl::worker
