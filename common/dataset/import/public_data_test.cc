// Reads data sets that others made: MNIST's test set, and CIFAR-10 as WebDataset.
//
//   ATOLL_DATA_DIR=FOLDER build/release/bin/public_data_test
//
// FOLDER has mnist10k/t10k-images-idx3-ubyte.gz with its labels beside it, and cifar10/test-000000.tar.
#include <cstdlib>
#include <map>
#include <string>

#include "common/dataset/image_codec.h"
#include "common/dataset/import/import_source.h"
#include "gtest/gtest.h"

namespace atl::dataset {
namespace {

std::string DataFolder() {
  const char* const folder = std::getenv("ATOLL_DATA_DIR");
  return folder == nullptr ? "" : folder;
}

TEST(PublicDataTest, MnistTestSetReadsAsTenThousandDigits) {
  const std::string folder = DataFolder() + "/mnist10k";
  const auto source = OpenSource({.format = SourceFormat::kIdx, .paths = {folder + "/t10k-images-idx3-ubyte.gz"}});
  ASSERT_TRUE(source.ok()) << source.status();
  std::map<int64_t, int> counts;
  for (;;) {
    SourceRow row;
    const auto more = (*source)->Next(&row);
    ASSERT_TRUE(more.ok()) << more.status();
    if (!*more) break;
    ASSERT_EQ(row.image->pixels.size(), 28U * 28);
    ++counts[row.label];
  }
  ASSERT_EQ(counts.size(), 10U);
  EXPECT_EQ(counts[0], 980);
  EXPECT_EQ(counts[1], 1135);
  EXPECT_EQ(counts[9], 1009);
}

TEST(PublicDataTest, CifarShardsYieldColourImagesOfTenClasses) {
  const std::string folder = DataFolder() + "/cifar10";
  const auto source = OpenSource({.format = SourceFormat::kWebDataset, .paths = {folder + "/test-000000.tar"}});
  ASSERT_TRUE(source.ok()) << source.status();
  std::map<int64_t, int> counts;
  for (int i = 0; i < 300; ++i) {
    SourceRow row;
    ASSERT_TRUE((*source)->Next(&row).value());
    ASSERT_EQ(row.problem, "");
    const auto image = DecodeImage(row.encoded, row.where);
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_EQ(image->channels, 3);
    EXPECT_EQ(image->height, 32);
    EXPECT_EQ(image->width, 32);
    ++counts[row.label];
  }
  EXPECT_EQ(counts.size(), 10U);
}

}  // namespace
}  // namespace atl::dataset
