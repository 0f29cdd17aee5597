#include "worker/island/data_network.h"

#include <vector>

#include "common/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::worker {
namespace {

using ::testing::HasSubstr;

TEST(DataNetworkTest, BeyondThisMachineItIsNamedAndVouchedFor) {
  struct Case {
    const char* interface;
    bool trusted;
    bool local;
    int ranks;
    const char* expected;  // an interface, or the reason of an error
  };
  const std::vector<Case> cases = {
      {"", false, true, 4, "lo"},
      {"lo", false, true, 4, "lo"},
      {"lo", false, false, 4, "lo"},
      {"", false, false, 1, "lo"},
      {"", true, true, 4, "lo"},
      {"", false, false, 2, "DATA_INTERFACE_REQUIRED"},
      {"", true, false, 2, "DATA_INTERFACE_REQUIRED"},
      {"all", true, false, 2, "DATA_INTERFACE_REQUIRED"},
      {"all", true, true, 2, "DATA_INTERFACE_REQUIRED"},
      {"eth1", false, false, 2, "DATA_NETWORK_NOT_TRUSTED"},
      {"eth1", false, true, 2, "DATA_NETWORK_NOT_TRUSTED"},
      {"eth1", false, false, 1, "DATA_NETWORK_NOT_TRUSTED"},
      {"eth1", true, false, 2, "eth1"},
      {"mlx5_0:1", true, false, 8, "mlx5_0:1"},
  };
  for (const Case& test : cases) {
    const auto chosen =
        ChooseDataInterface({.interface = test.interface, .trusted = test.trusted}, test.local, test.ranks);
    EXPECT_EQ(chosen.ok() ? *chosen : ErrorReason(chosen.status()), test.expected)
        << "'" << test.interface << "' trusted " << test.trusted << " local " << test.local << " ranks " << test.ranks;
  }
}

TEST(DataNetworkTest, TheErrorSaysWhatToDo) {
  EXPECT_THAT(std::string(ChooseDataInterface({.interface = "eth1"}, false, 2).status().message()),
              HasSubstr("--trusted-data-network"));
  EXPECT_THAT(std::string(ChooseDataInterface({}, false, 2).status().message()), HasSubstr("--interface"));
}

}  // namespace
}  // namespace atl::worker
