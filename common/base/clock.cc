#include "common/base/clock.h"

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/time/clock.h"

namespace atl {
namespace {

class RealClock : public Clock {
 public:
  absl::Time Now() override {
    if (offset_file_.empty()) return absl::Now();
    double seconds = 0;
    std::ifstream(offset_file_) >> seconds;
    return absl::Now() + absl::Seconds(seconds);
  }

  absl::Duration Monotonic() override { return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch()); }

  bool AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition, absl::Duration deadline) override {
    return mutex->AwaitWithTimeout(condition, deadline - Monotonic());
  }

 private:
  static std::string OffsetFile() {
    const char* path = std::getenv("ATOLL_CLOCK_OFFSET_FILE");
    return path == nullptr ? "" : path;
  }

  const std::string offset_file_ = OffsetFile();
};

}  // namespace

Clock* Clock::Real() {
  static RealClock* const clock = new RealClock;
  return clock;
}

}  // namespace atl
