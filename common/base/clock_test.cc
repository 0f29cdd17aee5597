#include "common/base/clock.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace atl {
namespace {

TEST(RealClockTest, GoesWithTheMachines) {
  EXPECT_LT(absl::AbsDuration(Clock::Real()->Now() - absl::Now()), absl::Minutes(1));
}

// In a process of its own: the environment is read once.
TEST(RealClockDeathTest, JumpsWithTheOffsetFileWhileMonotonicTimeDoesNot) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const std::string path = testing::TempDir() + "clock_offset_" + std::to_string(getpid());
  const auto jumped = [&path] {
    setenv("ATOLL_CLOCK_OFFSET_FILE", path.c_str(), 1);
    Clock* const clock = Clock::Real();
    const absl::Duration start = clock->Monotonic();
    if (absl::AbsDuration(clock->Now() - absl::Now()) > absl::Minutes(1)) return 1;  // no file yet
    for (const int seconds : {7200, -7200}) {
      std::ofstream(path) << seconds;
      const absl::Duration offset = clock->Now() - absl::Now();
      if (absl::AbsDuration(offset - absl::Seconds(seconds)) > absl::Minutes(1)) return 2;
    }
    unlink(path.c_str());
    return clock->Monotonic() - start < absl::Minutes(1) ? 0 : 3;
  };
  EXPECT_EXIT(std::_Exit(jumped()), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace atl
