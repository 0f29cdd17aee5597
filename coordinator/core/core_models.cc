// Published models and which version is served.
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "coordinator/core/core.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace atl::coordinator {

absl::StatusOr<store::Model> Core::GetModel(std::string_view name) {
  return store_.GetModel(name);
}

absl::StatusOr<std::vector<store::Model>> Core::ListModels(std::string_view after, int32_t limit) {
  return store_.ListModels(after, limit);
}

absl::StatusOr<std::string> Core::SetServingVersion(const CallKey& key, std::string_view name, std::string_view version,
                                                    int64_t expected_generation, const EncodeModel& encode) {
  ATOLL_ASSIGN_OR_RETURN(std::optional<std::string> before, FindAnswer(key));
  if (before) return *std::move(before);
  ATOLL_ASSIGN_OR_RETURN(store::Model model, store_.GetModel(name));
  std::string response;
  ATOLL_RETURN_IF_ERROR(Write("set_serving_version", [&](store::Transaction& transaction) -> absl::Status {
    ATOLL_ASSIGN_OR_RETURN(const bool known, transaction.HasModelVersion(name, version));
    if (!known) {
      return MakeError(absl::StatusCode::kNotFound, "MODEL_VERSION_UNKNOWN",
                       fmt::format("model {} has no version '{}'", name, version));
    }
    ATOLL_ASSIGN_OR_RETURN(const std::optional<store::ServingRow> serving, transaction.Serving(name));
    const int64_t generation = serving ? serving->generation : 0;
    if (generation != expected_generation) {
      return MakeError(absl::StatusCode::kAborted, "STALE_GENERATION",
                       fmt::format("model {}: expected generation {}, found {}, serving {}", name, expected_generation,
                                   generation, serving ? serving->version : ""));
    }
    model.serving = {std::string(name), std::string(version), generation + 1, clock_.Now(),
                     fmt::format("set by {}", key.caller)};
    ATOLL_RETURN_IF_ERROR(transaction.PutServing(model.serving));
    response = encode(model);
    return RecordAnswer(transaction, key, response);
  }));
  spdlog::info("model {} serves version {}, generation {}", name, version, model.serving.generation);
  model_watches_.MarkDirty(name);
  return response;
}

}  // namespace atl::coordinator
