#include "worker/island/rank_device.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"

namespace atl::worker {
namespace {

struct Case {
  std::string flag;
  std::string source;  // of the rank's identity
  Environment environment;
  int32_t visible;
  std::string expected;  // numbers and reason, or an error's reason
};

TEST(ChooseDevice, FlagThenVisibilityThenVariablesThenLeader) {
  const Environment torchrun = {{"LOCAL_RANK", "1"}};
  const Environment slurm = {{"SLURM_LOCALID", "2"}};
  const std::vector<Case> cases = {
      {"cpu", "flags", torchrun, 0, "[] --device cpu"},
      {"cuda:1", "flags", {}, 2, "[1] --device cuda:1"},
      {"cuda:0", "torchrun", torchrun, 2, "[0] --device cuda:0"},
      {"cuda:1", "flags", {}, 1, "DEVICE_UNAVAILABLE"},
      {"cuda", "flags", {}, 0, "DEVICE_UNAVAILABLE"},
      {"cuda", "alone", {}, 1, "[0] the only device that this process sees"},
      // CUDA_VISIBLE_DEVICES of Slurm or Kubernetes leaves each rank one device, which it calls cuda:0.
      {"cuda", "torchrun", torchrun, 1, "[0] the only device that this process sees"},
      {"cuda", "slurm", slurm, 1, "[0] the only device that this process sees"},
      {"cuda", "torchrun", torchrun, 4, "[1] LOCAL_RANK=1"},
      {"cuda", "slurm", slurm, 4, "[2] SLURM_LOCALID=2"},
      {"cuda", "torchrun", {{"LOCAL_RANK", "3"}, {"SLURM_LOCALID", "0"}}, 4, "[3] LOCAL_RANK=3"},
      // Each rank has two devices of its own: its number on the host says nothing about them.
      {"cuda", "slurm", slurm, 2, "[0, 1] the leader's choice: SLURM_LOCALID=2 and 2 devices"},
      // A batch script that starts ranks itself: all of them see SLURM_LOCALID=0.
      {"cuda", "flags", {{"SLURM_LOCALID", "0"}}, 2, "[0, 1] the leader's choice"},
      {"cuda", "flags", torchrun, 2, "[1] LOCAL_RANK=1"},
      {"cuda", "jobset", {{"JOB_COMPLETION_INDEX", "1"}}, 2, "[0, 1] the leader's choice"},
      {"cuda", "flags", {}, 3, "[0, 1, 2] the leader's choice"},
      {"cuda", "torchrun", {{"LOCAL_RANK", ""}}, 2, "[0, 1] the leader's choice"},
      {"cuda", "torchrun", {{"LOCAL_RANK", "first"}}, 2, "RANK_UNCLEAR"},
      {"cuda", "torchrun", {{"LOCAL_RANK", "-1"}}, 2, "RANK_UNCLEAR"},
      {"cuda:0,cuda:1", "flags", {}, 2, "DEVICE_UNKNOWN"},
      {"cuda:", "flags", {}, 2, "DEVICE_UNKNOWN"},
      {"cuda:x", "flags", {}, 2, "DEVICE_UNKNOWN"},
      {"cuda1", "flags", {}, 2, "DEVICE_UNKNOWN"},
      {"gpu", "flags", {}, 2, "DEVICE_UNKNOWN"},
      {"cpu:1", "flags", {}, 2, "DEVICE_UNKNOWN"},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(fmt::format("{} {} {} {}", test.flag, test.source, test.environment, test.visible));
    const auto local = FindLocalRank({.source = test.source}, test.environment);
    const auto choice = local.ok() ? ChooseDevice(test.flag, *local, test.visible) : local.status();
    EXPECT_EQ(choice.ok() ? fmt::format("{} {}", choice->numbers, choice->reason) : ErrorReason(choice.status()),
              test.expected);
  }
}

// "1:a 2:ab 3:ab": the ranks, each with the devices that it sees, by their ids.
std::string Assigned(const std::vector<std::pair<int32_t, std::string>>& ranks) {
  std::vector<DeviceSeeker> seekers;
  for (const auto& [rank, ids] : ranks) {
    DeviceSeeker seeker{.rank = rank, .where = "reef-1, process 7"};
    for (const char id : ids) {
      seeker.devices.push_back({fmt::format("cuda:{}", seeker.devices.size()), fmt::format("GPU-{}", id)});
    }
    seekers.push_back(seeker);
  }
  const auto given = AssignDevices(seekers);
  if (!given.ok()) return std::string(given.status().message());
  std::string text;
  for (size_t i = 0; i < seekers.size(); ++i) {
    text += fmt::format("{}={}({}) ", seekers[i].rank, (*given)[i].label, (*given)[i].id);
  }
  return text;
}

TEST(AssignDevices, EveryRankHasADeviceOfItsOwn) {
  EXPECT_EQ(Assigned({}), "");
  // Ranks of one host, in rank order.
  EXPECT_EQ(Assigned({{0, "ab"}, {1, "ab"}}), "0=cuda:0(GPU-a) 1=cuda:1(GPU-b) ");
  // Two hosts.
  EXPECT_EQ(Assigned({{0, "ab"}, {1, "ab"}, {2, "cd"}}), "0=cuda:0(GPU-a) 1=cuda:1(GPU-b) 2=cuda:0(GPU-c) ");
  // One visible device each.
  EXPECT_EQ(Assigned({{0, "a"}, {1, "b"}}), "0=cuda:0(GPU-a) 1=cuda:0(GPU-b) ");
  // Decided ranks first, wherever they stand.
  EXPECT_EQ(Assigned({{0, "ab"}, {1, "a"}}), "0=cuda:1(GPU-b) 1=cuda:0(GPU-a) ");
  // On the processor.
  EXPECT_EQ(Assigned({{0, ""}, {1, ""}}), "0=() 1=() ");
}

TEST(AssignDevices, TwoRanksOnOneDeviceAreRefusedByName) {
  EXPECT_EQ(Assigned({{0, "a"}, {3, "a"}}),
            "rank 3 (reef-1, process 7): expected a device that no other rank has, found cuda:0 (GPU-a) with rank 0 "
            "(reef-1, process 7). Give each rank a device of its own: --device cuda:N, LOCAL_RANK or SLURM_LOCALID, or "
            "start fewer ranks");
  EXPECT_EQ(Assigned({{0, "ab"}, {1, "ab"}, {2, "ab"}}),
            "rank 2 (reef-1, process 7): expected a device that no other rank has, found cuda:0 (GPU-a) with rank 0 "
            "(reef-1, process 7) and the others of its 2 devices taken too. Give each rank a device of its own: "
            "--device cuda:N, LOCAL_RANK or SLURM_LOCALID, or start fewer ranks");
}

}  // namespace
}  // namespace atl::worker
