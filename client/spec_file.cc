#include "client/spec_file.h"

#include "common/base/errors.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"
#include "common/spec/spec_io.h"
#include "fmt/format.h"

namespace atl::client {

absl::StatusOr<spec::JobSpec> ReadSpecFile(const std::string& file, const std::vector<std::string>& set) {
  std::vector<spec::Override> overrides;
  for (const std::string& text : set) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return MakeError(absl::StatusCode::kInvalidArgument, "USAGE",
                       fmt::format("--set: expected FIELD=VALUE, found '{}'", text));
    }
    overrides.push_back({.path = text.substr(0, equals), .value = text.substr(equals + 1)});
  }
  constexpr int64_t kLargest = 2 << 20;
  ATOLL_ASSIGN_OR_RETURN(const std::string yaml, ReadFile(file, kLargest));
  return spec::ParseJobSpec(yaml, file == "-" ? "standard input" : file, overrides);
}

}  // namespace atl::client
