#include "common/formats/frozen_files.h"

#include "common/base/errors.h"
#include "common/storage/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::storage {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(FrozenFilesTest, EveryFileIsReadAndChecked) {
  TemporaryStore store;
  const WrittenFile stem = *store->Write(store->UriOf("stem.pt"), "stem");
  const WrittenFile weights = *store->Write(store->UriOf("weights.safetensors"), "weights");
  const std::vector<spec::FrozenFileField> files = {{"frozen[0].torchscript[0]", stem.uri, stem.sha256},
                                                    {"frozen[0].torchscript[1]", stem.uri, stem.sha256},
                                                    {"frozen[1].weights", weights.uri, weights.sha256}};
  const auto read = ReadFrozenFiles(store.get(), files);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(*read, UnorderedElementsAre(Pair(stem.uri, "stem"), Pair(weights.uri, "weights")));

  const WrittenFile flipped = *store->Write(weights.uri, "weighus");
  const absl::Status status = ReadFrozenFiles(store.get(), files).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_EQ(ErrorReason(status), "HASH_MISMATCH");
  EXPECT_THAT(std::string(status.message()), HasSubstr("frozen[1].weights: " + weights.uri + ": expected SHA-256 " +
                                                       weights.sha256 + ", found " + flipped.sha256));

  ASSERT_TRUE(store->Delete(weights.uri).ok());
  const absl::Status missing = ReadFrozenFiles(store.get(), files).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr("frozen[1].weights: "));
}

}  // namespace
}  // namespace atl::storage
