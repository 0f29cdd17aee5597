// The principals file and the deny list.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "common/auth/principals.h"
#include "common/base/errors.h"
#include "tests/fuzz/short_error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto denied = atl::rpc::DenyList::Parse(text, "fuzz");
  if (!denied.ok()) atl::RequireShortError(denied.status());
  const auto no_files = [](const std::string&) -> absl::StatusOr<std::string> {
    return atl::MakeError(absl::StatusCode::kNotFound, "FILE_ERROR", "cannot read it");
  };
  const auto principals = atl::rpc::Principals::Parse(text, "fuzz", no_files);
  if (!principals.ok()) {
    atl::RequireShortError(principals.status());
    return 0;
  }
  // No caller is admitted without a credential, or with one that cannot be in the file as its own hash.
  const absl::Time now = absl::FromUnixSeconds(1'700'000'060);
  const std::vector<std::string> nobody;
  if (principals->Check("", nobody, {}, now).ok() || principals->Check("not a token", nobody, {}, now).ok()) {
    std::abort();
  }
  const std::vector<std::string> names = {"worker", "a"};
  const auto known = principals->Check("", names, {}, now);
  if (known.ok() && (known->subject.empty() || known->roles.empty())) std::abort();
  if (!known.ok()) atl::RequireShortError(known.status());
  return 0;
}
