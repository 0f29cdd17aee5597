#include "common/dataset/contact_sheet.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/errors.h"
#include "common/dataset/bitmap_font.h"
#include "common/dataset/image_codec.h"
#include "common/dataset/testing.h"
#include "gtest/gtest.h"

namespace atl::dataset {
namespace {

// How many pixels have exactly this colour.
int64_t Count(const Image& image, uint8_t red, uint8_t green, uint8_t blue) {
  int64_t count = 0;
  for (size_t i = 0; i < image.pixels.size(); i += 3) {
    count += image.pixels[i] == red && image.pixels[i + 1] == green && image.pixels[i + 2] == blue ? 1 : 0;
  }
  return count;
}

Image Plain(uint8_t value, int32_t side) {
  return {.channels = 1, .height = side, .width = side, .pixels = std::vector<uint8_t>(side * side, value)};
}

TEST(ContactSheetTest, ImagesAreEnlargedByWholeFactorsAndAllDrawn) {
  const auto sheet =
      DrawContactSheet({{"a", {Plain(10, 8), Plain(10, 8)}}, {"b", {Plain(20, 8)}}}, {.cell_pixels = 30});
  ASSERT_TRUE(sheet.ok()) << sheet.status();
  EXPECT_EQ(Count(*sheet, 10, 10, 10), 2 * 24 * 24);
  EXPECT_EQ(Count(*sheet, 20, 20, 20), 24 * 24);
}

TEST(ContactSheetTest, RowsWrapAfterTheColumnsAskedFor) {
  const std::vector<Image> images(7, Plain(10, 8));
  const Image wide = DrawContactSheet({{"", images}}).value();
  const Image wrapped = DrawContactSheet({{"", images}}, {.columns = 3}).value();
  EXPECT_LT(wrapped.width, wide.width);
  EXPECT_GT(wrapped.height, wide.height);
  EXPECT_EQ(Count(wrapped, 10, 10, 10), 7 * 48 * 48);
}

TEST(ContactSheetTest, GreyColourAndSizesMayBeMixed) {
  const Image red{.channels = 3, .height = 1, .width = 2, .pixels = {255, 0, 0, 255, 0, 0}};
  const Image sheet =
      DrawContactSheet({{"mixed \xc3\xa4", {Plain(10, 4), red}}, {"none", {}}}, {.title = "Title"}).value();
  EXPECT_EQ(Count(sheet, 10, 10, 10), 48 * 48);
  EXPECT_EQ(Count(sheet, 255, 0, 0), 24 * 12);
  EXPECT_TRUE(EncodePng(sheet).ok());
}

TEST(ContactSheetTest, SheetsOfNothingOfMalformedImagesAndOfTooManyPixelsAreRefused) {
  EXPECT_EQ(ErrorReason(DrawContactSheet({}).status()), "CONTACT_SHEET");
  EXPECT_FALSE(DrawContactSheet({{"a", {}}}).ok());
  EXPECT_FALSE(DrawContactSheet({{"a", {Image{.channels = 1, .height = 2, .width = 2, .pixels = {1}}}}}).ok());
  EXPECT_FALSE(DrawContactSheet({{"a", std::vector<Image>(40'000, Plain(1, 1))}}).ok());
}

TEST(BitmapFontTest, EveryPrintableCharacterButTheSpaceHasItsOwnGlyph) {
  std::vector<std::string> seen;
  for (char c = '!'; c <= '~'; ++c) {
    seen.emplace_back(reinterpret_cast<const char*>(GlyphColumns(c)), kGlyphWidth);
    EXPECT_NE(seen.back(), std::string(kGlyphWidth, '\0')) << c;
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
}

}  // namespace
}  // namespace atl::dataset
