// Imports from files that others made: the digits of scikit-learn, MNIST's test set, CIFAR-10 as WebDataset. Each is
// skipped, and says so, where the files are not there.

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include "common/dataset/image_codec.h"
#include "common/dataset/import.h"
#include "common/dataset/import_source.h"
#include "common/storage/testing.h"
#include "gtest/gtest.h"

namespace atl::dataset {
namespace {

std::string FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// ATOLL_DATA_DIR, or the folder beside the checkout.
std::string DataFolder() {
  const std::string named = FromEnvironment("ATOLL_DATA_DIR");
  return named.empty() ? FromEnvironment("ATOLL_SOURCE_DIR") + "/../shared/data" : named;
}

TEST(PublicDataTest, DigitsOfScikitLearnImportWhole) {
  const std::string path = FromEnvironment("ATOLL_PREFIX") + "/data/digits.csv.gz";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "absent: " << path;
  storage::TemporaryStore store;
  const auto manifest =
      ImportDataset(store.get(), {.name = "digits", .format = SourceFormat::kDigitsCsv, .paths = {path}});
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->rows("train") + manifest->rows("held_out"), 1797);
  EXPECT_NEAR(static_cast<double>(manifest->rows("held_out")), 180, 65);
  EXPECT_EQ(manifest->classes.size(), 10U);
  EXPECT_EQ(manifest->skipped_count, 0);
}

TEST(PublicDataTest, MnistTestSetReadsAsTenThousandDigits) {
  const std::string folder = DataFolder() + "/mnist10k";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "absent: " << folder;
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
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "absent: " << folder;
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
