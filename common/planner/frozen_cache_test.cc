#include "common/planner/frozen_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace atl::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A pass of 20 s saves 10 ms in each of 3000 iterations.
FrozenCacheFacts WorthIt() {
  return {.iterations = 3000,
          .bytes = 4e6,
          .pass_seconds = 20,
          .computed_seconds = 0.11,
          .cached_seconds = 0.1,
          .storage_limit_bytes = 1e9};
}

TEST(DecideFrozenCache, KeepsWhatFitsAndSavesMoreThanItsPassTakes) {
  struct Case {
    void (*change)(FrozenCacheFacts*);
    bool cache;
    const char* reason;
  };
  const Case cases[] = {
      {[](auto*) {}, true, "computed once and kept: a pass over all inputs takes 20 s and makes each"},
      {[](auto*) {}, true, "each of 3000 iterations 10 ms shorter"},
      {[](auto* f) { f->iterations = 1999; }, false,
       "computed in every iteration: a pass over all inputs would take 20 s and make each"},
      {[](auto* f) { f->iterations = 2001; }, true, ""},
      {[](auto* f) { f->iterations = 0, f->pass_seconds = 0; }, false, ""},
      {[](auto* f) { f->computed_seconds = 0.1; }, false, "0 ms shorter"},
      {[](auto* f) { f->computed_seconds = 0.098, f->pass_seconds = 0; }, false, "2 ms longer"},
      {[](auto* f) { f->storage_limit_bytes = 3e6; }, false, "would take 4e+06 bytes, more than the 3e+06"},
      {[](auto* f) { f->storage_limit_bytes = 0; }, true, ""},
  };
  for (const Case& c : cases) {
    FrozenCacheFacts facts = WorthIt();
    c.change(&facts);
    const FrozenCacheDecision decision = DecideFrozenCache(facts);
    EXPECT_EQ(decision.cache, c.cache) << decision.reason;
    EXPECT_THAT(decision.reason, HasSubstr(c.reason));
  }
}

TEST(FrozenInputsOf, CountsDifferentInputsOfEachComponent) {
  const std::vector<spec::FrozenSpec> components = {
      {.name = "stem"}, {.name = "encoder", .input = "stem"}, {.name = "labels", .input = "label"}};
  spec::TrainingSpec training{.steps = 500};
  EXPECT_THAT(FrozenInputsOf(components, training, 1000, 10).rows, ElementsAre(1000, 1000, 11));
  EXPECT_EQ(FrozenInputsOf(components, training, 1000, 10).iterations, 500);
  training.flip = true;
  EXPECT_THAT(FrozenInputsOf(components, training, 1000, 10).rows, ElementsAre(2000, 2000, 11));
}

}  // namespace
}  // namespace atl::planner
