#include "router/engine/init_image.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "common/base/errors.h"
#include "common/dataset/image_codec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::router {
namespace {

constexpr int64_t kLimit = 1000;

std::string Raw(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), 0);
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::string Png(int32_t channels, int32_t height, int32_t width) {
  dataset::Image image{.channels = channels, .height = height, .width = width};
  for (int32_t i = 0; i < channels * height * width; ++i) image.pixels.push_back(static_cast<uint8_t>(i * 5));
  return *dataset::EncodePng(image);
}

std::string ReasonOf(const std::string& bytes, ImageFormat format, int64_t limit = kLimit) {
  const absl::Status status = DecodeInitImage(bytes, format, limit, "init_images[2]").status();
  EXPECT_EQ(ErrorField(status), status.ok() ? "" : "init_images[2]");
  return ErrorReason(status);
}

TEST(DecodeInitImageTest, APictureIsScaledAndItsChannelsAreParted) {
  const auto init = DecodeInitImage(Png(3, 1, 2), ImageFormat::kPng, kLimit, "init_images[0]");
  ASSERT_TRUE(init.ok()) << init.status();
  EXPECT_EQ(init->channels, 3);
  EXPECT_EQ(init->height, 1);
  EXPECT_EQ(init->width, 2);
  std::vector<float> expected;
  for (const int pixel : {0, 15, 5, 20, 10, 25}) expected.push_back(static_cast<float>(pixel) / 127.5f - 1);
  EXPECT_THAT(*init->pixels, ::testing::Pointwise(::testing::FloatEq(), expected));
}

TEST(DecodeInitImageTest, RawValuesAreTakenAsTheyAre) {
  const auto init = DecodeInitImage(Raw({0.5f, -3.25f}), ImageFormat::kRaw, kLimit, "init_images[0]");
  ASSERT_TRUE(init.ok()) << init.status();
  EXPECT_EQ(init->channels, 0);
  EXPECT_THAT(*init->pixels, ::testing::ElementsAre(0.5f, -3.25f));
}

TEST(DecodeInitImageTest, WhatIsNoImageIsRefused) {
  EXPECT_EQ(ReasonOf("", ImageFormat::kPng), "INIT_IMAGE_UNREADABLE");
  EXPECT_EQ(ReasonOf("GIF89a, and some more bytes after it", ImageFormat::kPng), "INIT_IMAGE_UNREADABLE");
  EXPECT_EQ(ReasonOf(Png(1, 8, 8).substr(0, 60), ImageFormat::kPng), "INIT_IMAGE_UNREADABLE");
  EXPECT_EQ(ReasonOf("12345", ImageFormat::kRaw), "INIT_IMAGE_UNREADABLE");
  EXPECT_EQ(ReasonOf(Raw({1, std::numeric_limits<float>::infinity()}), ImageFormat::kRaw), "INIT_IMAGE_UNREADABLE");
  EXPECT_EQ(ReasonOf(Raw({std::nanf("")}), ImageFormat::kRaw), "INIT_IMAGE_UNREADABLE");
}

// A header that promises gigabytes costs nothing.
TEST(DecodeInitImageTest, TooLargeIsSaidBeforeAnythingIsDecoded) {
  EXPECT_EQ(ReasonOf(Png(1, 8, 8), ImageFormat::kPng, 3 * 64), "");
  EXPECT_EQ(ReasonOf(Png(1, 8, 8), ImageFormat::kPng, 3 * 64 - 1), "INIT_IMAGE_TOO_LARGE");
  std::string bomb = Png(1, 8, 8);
  for (size_t i = 16; i < 24; ++i) bomb[i] = '\x7f';
  EXPECT_EQ(ReasonOf(bomb, ImageFormat::kPng), "INIT_IMAGE_TOO_LARGE");
  EXPECT_EQ(ReasonOf(Raw(std::vector<float>(8)), ImageFormat::kRaw, 7), "INIT_IMAGE_TOO_LARGE");
}

}  // namespace
}  // namespace atl::router
