#include "common/base/explain.h"

#include "common/base/errors.h"
#include "common/base/one_line.h"
#include "fmt/format.h"

namespace atl {

std::string Explain(const absl::Status& status) {
  const std::string reason = ErrorReason(status);
  const std::string message = OneLine(std::string_view(status.message().data(), status.message().size()));
  return reason.empty() ? message : fmt::format("{} [{}]", message, reason);
}

}  // namespace atl
