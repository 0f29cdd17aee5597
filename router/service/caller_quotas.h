// How much each caller has under way. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace atl::router {

// A caller's share. Given back when it is destroyed, from any thread, also after the quotas are gone.
using QuotaShare = std::shared_ptr<const void>;

class CallerQuotas {
 public:
  CallerQuotas();

  // For `images` more images of `subject`, who may have `most` under way at a time; unset: as many as it likes.
  // RESOURCE_EXHAUSTED, reason QUOTA_EXCEEDED.
  absl::StatusOr<QuotaShare> Take(const std::string& subject, int64_t images, std::optional<int64_t> most);

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace atl::router
