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

// How often the credential files are checked for changes.
inline constexpr absl::Duration kReloadInterval = absl::Seconds(1);

struct AuthenticatorOptions {
  std::string principals;  // file
  std::string deny_list;   // file; empty: none
  // Called on the reading thread after a file was reloaded, and once more at the next check.
  std::function<void(const class Authenticator&)> reloaded;
};

// Thread-safe; Check does not block on files. Owns one thread, which reads them.
class Authenticator {
 public:
  // Errors as in Principals::Parse and DenyList::Parse; NOT_FOUND, reason FILE_ERROR.
  static absl::StatusOr<std::shared_ptr<const Authenticator>> Open(const AuthenticatorOptions& options,
                                                                   Clock* clock = Clock::Real());
  virtual ~Authenticator() = default;

  // As Principals::Check. If a changed file cannot be read, the log says so once, and its previous contents stay in
  // force. Principals (with their keys) and the deny list fail independently.
  virtual absl::StatusOr<Principal> Check(std::string_view bearer,
                                          std::span<const std::string> certificate_names) const = 0;

  // Checks a call that began at `time` against the current files: expiry is judged at `time`, revocation now.
  virtual absl::StatusOr<Principal> CheckAsOf(std::string_view bearer, std::span<const std::string> certificate_names,
                                              absl::Time time) const = 0;
};

}  // namespace atl::rpc
