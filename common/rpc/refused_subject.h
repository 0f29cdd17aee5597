// Who it was that a refused credential belongs to: what the audit log says of a caller who was shut out. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rpc/principals.h"

namespace atl::rpc {

// The same refusal, which knows the subject of the credential. Callers are not sent it.
absl::Status WithSubject(absl::Status refusal, std::string_view subject);

// Of a call that is refused: its caller's subject, also where its entry is revoked or has expired (`caller` is then the
// error of Principals::Check); else the first of the names in its verified certificate; "" for nobody.
std::string SubjectOfRefused(const absl::StatusOr<Principal>& caller, std::span<const std::string> certificate_names);

}  // namespace atl::rpc
