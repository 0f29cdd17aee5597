#include "coordinator/store/sql_database.h"

#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::store {

absl::Status OutcomeUnknown(const absl::Status& error) {
  return MakeError(absl::StatusCode::kUnavailable, "STORE_OUTCOME_UNKNOWN",
                   fmt::format("{}; whether the transaction is durable is only known after a new start",
                               std::string(error.message())));
}

}  // namespace atl::store
