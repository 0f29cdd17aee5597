#include "common/planner/frozen_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"

namespace atl::planner {
namespace {

using ::testing::HasSubstr;

// Ten passes over outputs that are cheap to read and in nobody's bubble.
FrozenCacheFacts WorthIt() {
  return {.cache_exists = true,
          .epochs = 10,
          .samples = 1000,
          .bytes_per_sample = 4096,
          .compute_seconds = 0.01,
          .read_bytes_per_second = 1e8,
          .storage_limit_bytes = 1e9};
}

struct Case {
  void (*change)(FrozenCacheFacts*);
  bool cache;
  const char* reason;
};

TEST(DecideFrozenCache, AutoKeepsWhatRepeatsFitsAndSavesTime) {
  const Case cases[] = {
      {[](auto*) {}, true, "kept after the first of 10 passes"},
      {[](auto* f) { f->cache_exists = false; }, false, "this build runs frozen components in every iteration only"},
      {[](auto* f) { f->cache_exists = false; }, false,
       "only; a cache would save 0.01 s per sample in each of 9 passes"},
      {[](auto* f) { f->cache_exists = false, f->exposed_fraction = 0; }, false,
       "only; a cache would not help: the bubbles hold it"},
      {[](auto* f) { f->augments = true; }, false, "augmentation changes the images"},
      {[](auto* f) { f->reads_sample_only = false; }, false, "reads more than image and label"},
      {[](auto* f) { f->storage_limit_bytes = 4e6; }, false, "take 4.1e+06 bytes, more than the limit of 4e+06"},
      {[](auto* f) { f->storage_limit_bytes = 0; }, true, ""},
      {[](auto* f) { f->epochs = 1; }, false, "read no output twice"},
      {[](auto* f) { f->exposed_fraction = 0; }, false, "the bubbles hold it"},
      {[](auto* f) { f->read_bytes_per_second = 4e5; }, false, "reading takes 0.0102 s"},
      {[](auto* f) { f->read_bytes_per_second = 0; }, true, ""},
  };
  for (const Case& c : cases) {
    FrozenCacheFacts facts = WorthIt();
    c.change(&facts);
    const FrozenCacheDecision decision = *DecideFrozenCache(FrozenCache::kAuto, facts);
    EXPECT_EQ(decision.cache, c.cache) << c.reason;
    EXPECT_THAT(decision.reason, HasSubstr(c.reason));
    EXPECT_FALSE(DecideFrozenCache(FrozenCache::kNever, facts)->cache);
  }
}

TEST(DecideFrozenCache, AlwaysIsObeyedOrRefused) {
  FrozenCacheFacts facts = WorthIt();
  facts.epochs = 1;
  EXPECT_TRUE(DecideFrozenCache(FrozenCache::kAlways, facts)->cache);
  facts.augments = true;
  const absl::Status refused = DecideFrozenCache(FrozenCache::kAlways, facts).status();
  EXPECT_EQ(ErrorReason(refused), "FROZEN_CACHE");
  EXPECT_EQ(ErrorField(refused), "frozen_cache");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("augmentation"));
}

}  // namespace
}  // namespace atl::planner
