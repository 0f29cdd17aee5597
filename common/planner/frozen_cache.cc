#include "common/planner/frozen_cache.h"

#include <fmt/format.h>

#include "common/base/errors.h"

namespace atl::planner {
namespace {

// Why the outputs of one epoch are of no use in the next; empty when they are.
std::string WhyWrong(const FrozenCacheFacts& facts) {
  if (!facts.reads_sample_only)
    return "the component reads more than image and label, so that its outputs never repeat";
  if (facts.augments) return "augmentation changes the images from epoch to epoch, so that outputs do not repeat";
  return "";
}

// Of a sample, in every iteration.
double ExposedSeconds(const FrozenCacheFacts& facts) {
  return facts.compute_seconds * facts.exposed_fraction;
}

// Why a cache that would be right costs more than it saves; empty when it saves.
std::string WhyCostly(const FrozenCacheFacts& facts) {
  const double bytes = facts.bytes_per_sample * static_cast<double>(facts.samples);
  if (facts.storage_limit_bytes > 0 && bytes > facts.storage_limit_bytes) {
    return fmt::format("the outputs of {} samples take {:.3g} bytes, more than the limit of {:.3g}", facts.samples,
                       bytes, facts.storage_limit_bytes);
  }
  if (facts.epochs <= 1) {
    return fmt::format("{:.2g} passes over the samples read no output twice", facts.epochs);
  }
  // The first epoch computes either way.
  const double computing = ExposedSeconds(facts);
  const double reading = facts.read_bytes_per_second > 0 ? facts.bytes_per_sample / facts.read_bytes_per_second : 0;
  if (computing <= reading) {
    return fmt::format("the bubbles hold it: {:.3g} s per sample remain exposed, reading takes {:.3g} s", computing,
                       reading);
  }
  return "";
}

// Why there can be none; with what one would be worth, where that is known. Empty where there can.
std::string WhyImpossible(const FrozenCacheFacts& facts) {
  if (const std::string wrong = WhyWrong(facts); !wrong.empty() || facts.cache_exists) return wrong;
  std::string reason = "this build runs frozen components in every iteration only";
  if (facts.samples == 0) return reason;
  if (const std::string costly = WhyCostly(facts); !costly.empty())
    return reason + "; a cache would not help: " + costly;
  return reason + fmt::format("; a cache would save {:.3g} s per sample in each of {:.3g} passes after the first",
                              ExposedSeconds(facts), facts.epochs - 1);
}

}  // namespace

absl::StatusOr<FrozenCacheDecision> DecideFrozenCache(FrozenCache wanted, const FrozenCacheFacts& facts) {
  if (wanted == FrozenCache::kNever) return FrozenCacheDecision{false, "computed in every iteration, as asked for"};
  const std::string wrong = WhyImpossible(facts);
  if (wanted == FrozenCache::kAlways) {
    if (!wrong.empty()) {
      return FieldError("frozen_cache", "FROZEN_CACHE", fmt::format("expected auto or never, found always: {}", wrong));
    }
    return FrozenCacheDecision{true, "kept after the first pass, as asked for"};
  }
  if (!wrong.empty()) return FrozenCacheDecision{false, "computed in every iteration: " + wrong};
  if (const std::string costly = WhyCostly(facts); !costly.empty()) {
    return FrozenCacheDecision{false, "computed in every iteration: " + costly};
  }
  return FrozenCacheDecision{
      true, fmt::format("kept after the first of {:.3g} passes: {:.3g} s per sample would remain exposed in each",
                        facts.epochs, ExposedSeconds(facts))};
}

}  // namespace atl::planner
