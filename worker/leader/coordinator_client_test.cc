#include "worker/leader/coordinator_client.h"

#include <gtest/gtest.h>

#include "common/base/errors.h"

namespace atl::worker {
namespace {

TEST(CoordinatorClient, WhoIsAwayIsWaitedForAndWhoShutsTheIslandOutForFiveMinutes) {
  const auto refused = [](const char* reason) { return MakeError(absl::StatusCode::kUnauthenticated, reason, "x"); };
  const struct {
    const char* name;
    absl::Status status;
    bool let_in;
    absl::Duration shut_out;
    bool again;
  } cases[] = {
      {"away", absl::UnavailableError("x"), false, absl::ZeroDuration(), true},
      {"too slow", absl::DeadlineExceededError("x"), false, absl::ZeroDuration(), true},
      {"too busy", absl::ResourceExhaustedError("x"), true, absl::Hours(1), true},
      {"another attempt has it", absl::AbortedError("x"), true, absl::ZeroDuration(), false},
      {"not allowed", absl::PermissionDeniedError("x"), true, absl::ZeroDuration(), false},
      {"expired just now", refused("TOKEN_EXPIRED"), true, absl::ZeroDuration(), true},
      {"its hash is not in the file yet", refused("TOKEN_UNKNOWN"), true, absl::Minutes(4), true},
      {"expired, and nobody renews it", refused("TOKEN_EXPIRED"), true, absl::Minutes(5), false},
      {"never taken", refused("TOKEN_UNKNOWN"), false, absl::ZeroDuration(), false},
      {"revoked", refused("TOKEN_REVOKED"), true, absl::ZeroDuration(), false},
  };
  for (const auto& test : cases)
    EXPECT_EQ(IsTriedAgain(test.status, test.let_in, test.shut_out), test.again) << test.name;
}

}  // namespace
}  // namespace atl::worker
