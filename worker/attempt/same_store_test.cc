#include "worker/attempt/same_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"
#include "common/storage/testing.h"

namespace atl::worker {
namespace {

using ::testing::HasSubstr;

TEST(SameStore, TheCoordinatorsFileIsThere) {
  const storage::TemporaryFolder folder;
  const auto store = *storage::BlobStore::Open("file://" + folder.File("blobs"));
  const std::string uri = store->UriOf("coordinator/epochs/000000000001");
  EXPECT_TRUE(CheckSameStore(*store, "").ok()) << "a coordinator that does not say";

  const absl::Status missing = CheckSameStore(*store, uri);
  EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(missing), "BLOB_STORE_OTHER");
  EXPECT_THAT(std::string(missing.message()), HasSubstr(uri));
  EXPECT_THAT(std::string(missing.message()), HasSubstr("is the folder mounted here?"));

  ASSERT_TRUE(store->Write(uri, "store").ok());
  EXPECT_TRUE(CheckSameStore(*store, uri).ok());
  // A root above the coordinator's holds all of its files too.
  const auto above = *storage::BlobStore::Open("file://" + folder.path());
  EXPECT_TRUE(CheckSameStore(*above, uri).ok());

  const auto other = *storage::BlobStore::Open("file://" + folder.File("other"));
  const absl::Status outside = CheckSameStore(*other, uri);
  EXPECT_EQ(ErrorReason(outside), "BLOB_STORE_OTHER");
  EXPECT_THAT(std::string(outside.message()), HasSubstr("another --blob-store"));
}

}  // namespace
}  // namespace atl::worker
