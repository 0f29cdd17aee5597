// Checks callers' credentials against the principals file and the deny list, and reads both again when they change.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/auth/principals.h"
#include "common/base/clock.h"

namespace atl::rpc {

// How often files of credentials are looked at.
inline constexpr absl::Duration kReloadInterval = absl::Seconds(1);

struct AuthenticatorOptions {
  std::string principals;  // file
  std::string deny_list;   // file; empty: none
  // Called after one of them was read again, and once more at the next look, on the thread that reads.
  std::function<void(const class Authenticator&)> reloaded;
};

// Thread-safe; Check does not block on files. Owns one thread, which reads them.
class Authenticator {
 public:
  // Errors as in Principals::Parse and DenyList::Parse; NOT_FOUND, reason FILE_ERROR.
  static absl::StatusOr<std::shared_ptr<const Authenticator>> Open(const AuthenticatorOptions& options,
                                                                   Clock* clock = Clock::Real());
  virtual ~Authenticator() = default;

  // As Principals::Check. A file that changed into one that cannot be read is said once in the log, and what it said
  // last stays in force: principals with their keys by themselves, the deny list by itself.
  virtual absl::StatusOr<Principal> Check(std::string_view bearer,
                                          std::span<const std::string> certificate_names) const = 0;

  // What today's files say of a call that began at `time`: what has expired since counts, what was revoked does not.
  virtual absl::StatusOr<Principal> CheckAsOf(std::string_view bearer, std::span<const std::string> certificate_names,
                                              absl::Time time) const = 0;
};

}  // namespace atl::rpc
