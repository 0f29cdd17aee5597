#include "common/dataset/image_codec.h"

#include <turbojpeg.h>
#include <webp/encode.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "common/base/errors.h"
#include "common/dataset/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::dataset {
namespace {

using ::testing::HasSubstr;

std::string BigEndian(uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(value >> shift));
  return bytes;
}

std::string Chunk(const std::string& type, const std::string& data) {
  const std::string body = type + data;
  const auto crc = crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  return BigEndian(static_cast<uint32_t>(data.size())) + body + BigEndian(static_cast<uint32_t>(crc));
}

// A PNG that claims to be this large and holds next to nothing.
std::string PngBomb(uint32_t width, uint32_t height) {
  const std::string zeros(1000, '\0');
  std::string data(2000, '\0');
  uLongf size = data.size();
  compress(reinterpret_cast<Bytef*>(data.data()), &size, reinterpret_cast<const Bytef*>(zeros.data()), zeros.size());
  data.resize(size);
  return "\x89PNG\r\n\x1a\n" + Chunk("IHDR", BigEndian(width) + BigEndian(height) + std::string("\x08\x02\0\0\0", 5)) +
         Chunk("IDAT", data) + Chunk("IEND", "");
}

std::string Jpeg(const Image& image, int quality = 95) {
  const tjhandle encoder = tjInitCompress();
  unsigned char* data = nullptr;
  unsigned long size = 0;
  const bool grey = image.channels == 1;
  tjCompress2(encoder, image.pixels.data(), image.width, 0, image.height, grey ? TJPF_GRAY : TJPF_RGB, &data, &size,
              grey ? TJSAMP_GRAY : TJSAMP_444, quality, 0);
  std::string bytes(reinterpret_cast<char*>(data), size);
  tjFree(data);
  tjDestroy(encoder);
  return bytes;
}

std::string Webp(const Image& image) {
  uint8_t* data = nullptr;
  const size_t size = WebPEncodeLosslessRGB(image.pixels.data(), image.width, image.height, 3 * image.width, &data);
  std::string bytes(reinterpret_cast<char*>(data), size);
  WebPFree(data);
  return bytes;
}

// Smooth, so that lossy formats keep it.
Image Gradient(int32_t channels, int32_t height, int32_t width) {
  Image image{.channels = channels, .height = height, .width = width};
  for (int32_t i = 0; i < height * width; ++i) {
    for (int32_t c = 0; c < channels; ++c) {
      image.pixels.push_back(static_cast<uint8_t>((i % width) * 4 + (i / width) * 3 + c * 20));
    }
  }
  return image;
}

int LargestDifference(const Image& a, const Image& b) {
  if (a.pixels.size() != b.pixels.size()) return 256;
  int largest = 0;
  for (size_t i = 0; i < a.pixels.size(); ++i) largest = std::max(largest, std::abs(a.pixels[i] - b.pixels[i]));
  return largest;
}

TEST(ImageCodecTest, PngKeepsEveryPixelOfEveryKind) {
  for (const int32_t channels : {1, 3}) {
    for (const int32_t side : {1, 7, 8, 33}) {
      const Image image = PatternImage(channels, side, side + 2, 5);
      const auto decoded = DecodeImage(EncodePng(image).value(), "x.png");
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      EXPECT_EQ(decoded->channels, channels);
      EXPECT_EQ(decoded->height, side);
      EXPECT_EQ(decoded->width, side + 2);
      EXPECT_EQ(decoded->pixels, image.pixels);
    }
  }
}

TEST(ImageCodecTest, TransparentPngIsLaidOverWhite) {
  const Image image{.channels = 4, .height = 1, .width = 2, .pixels = {10, 20, 30, 255, 10, 20, 30, 0}};
  const Image decoded = DecodeImage(EncodePng(image).value(), "x.png").value();
  EXPECT_THAT(decoded.pixels, ::testing::ElementsAre(10, 20, 30, 255, 255, 255));
}

TEST(ImageCodecTest, JpegAndWebpDecodeToTheirPixels) {
  for (const int32_t channels : {1, 3}) {
    const Image image = Gradient(channels, 24, 16);
    const auto decoded = DecodeImage(Jpeg(image), "x.jpg");
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->channels, channels);
    EXPECT_LE(LargestDifference(*decoded, image), 8);
  }
  const Image image = PatternImage(3, 9, 11, 3);
  EXPECT_EQ(DecodeImage(Webp(image), "x.webp").value().pixels, image.pixels);
}

TEST(ImageCodecTest, BombsAreRefusedBeforeAnythingIsAllocated) {
  for (const auto& [width, height] : {std::pair(60'000U, 60'000U), std::pair(1'000'000U, 100U)}) {
    const auto decoded = DecodeImage(PngBomb(width, height), "bomb.png");
    EXPECT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ErrorReason(decoded.status()), "IMAGE_TOO_LARGE") << decoded.status();
    EXPECT_THAT(std::string(decoded.status().message()), HasSubstr(std::to_string(width)));
    EXPECT_THAT(std::string(decoded.status().message()), HasSubstr("bomb.png"));
  }
  // Beyond libpng's own limit the header is refused as such.
  EXPECT_EQ(DecodeImage(PngBomb(0x7fffffff, 0x7fffffff), "b").status().code(), absl::StatusCode::kInvalidArgument);
  // A JPEG header may claim 65,500 x 65,500.
  std::string jpeg = Jpeg(Gradient(3, 16, 16));
  const size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  jpeg.replace(frame + 5, 4, "\xff\xdc\xff\xdc");
  EXPECT_EQ(ErrorReason(DecodeImage(jpeg, "bomb.jpg").status()), "IMAGE_TOO_LARGE");
}

TEST(ImageCodecTest, TruncatedAndDamagedImagesAreRefused) {
  const Image image = PatternImage(3, 32, 32, 1);
  const std::string files[] = {EncodePng(image).value(), Jpeg(image), Webp(image)};
  for (const std::string& file : files) {
    ASSERT_TRUE(DecodeImage(file, "whole").ok());
    for (const size_t keep : {size_t{0}, size_t{3}, size_t{12}, size_t{40}, file.size() / 2, file.size() - 20}) {
      const auto decoded = DecodeImage(file.substr(0, keep), "cut");
      EXPECT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument) << keep << " of " << file.size();
      EXPECT_EQ(ErrorReason(decoded.status()), "IMAGE_UNREADABLE") << keep;
    }
  }
  const auto text = DecodeImage("hello world", "x.png");
  EXPECT_THAT(std::string(text.status().message()), HasSubstr("x.png: expected PNG, JPEG or WebP, found bytes 68 65"));
}

TEST(ImageCodecTest, MalformedImagesAreNotEncoded) {
  EXPECT_FALSE(EncodePng({.channels = 1, .height = 2, .width = 2, .pixels = {1, 2, 3}}).ok());
  EXPECT_FALSE(EncodePng({.channels = 2, .height = 1, .width = 1, .pixels = {1, 2}}).ok());
  EXPECT_FALSE(EncodePng({}).ok());
}

TEST(ToChannelsTest, GreyWidensAndColourNarrowsByLuma) {
  const Image grey{.channels = 1, .height = 1, .width = 2, .pixels = {7, 9}};
  EXPECT_THAT(ToChannels(grey, 3).pixels, ::testing::ElementsAre(7, 7, 7, 9, 9, 9));
  const Image colour{.channels = 3, .height = 1, .width = 3, .pixels = {255, 0, 0, 0, 255, 0, 8, 8, 8}};
  EXPECT_THAT(ToChannels(colour, 1).pixels, ::testing::ElementsAre(76, 150, 8));
}

TEST(CropAndResizeTest, ShrinkingAveragesAreasAndEnlargingInterpolates) {
  const Image image{.channels = 1, .height = 2, .width = 4, .pixels = {0, 10, 20, 0, 0, 30, 40, 0}};
  // The centred square is the middle two columns.
  EXPECT_THAT(CropAndResize(image, 1).pixels, ::testing::ElementsAre(25));
  EXPECT_THAT(CropAndResize(image, 2).pixels, ::testing::ElementsAre(10, 20, 30, 40));
  const Image larger = CropAndResize({.channels = 1, .height = 1, .width = 1, .pixels = {9}}, 3);
  EXPECT_THAT(larger.pixels, ::testing::Each(9));
  const Image edge = CropAndResize({.channels = 1, .height = 2, .width = 2, .pixels = {0, 100, 0, 100}}, 4);
  EXPECT_THAT(std::vector<uint8_t>(edge.pixels.begin(), edge.pixels.begin() + 4),
              ::testing::ElementsAre(0, 25, 75, 100));
  const Image third = CropAndResize(PatternImage(3, 100, 50, 2), 33);
  EXPECT_EQ(third.pixels.size(), 33U * 33 * 3);
}

TEST(AppendScaledTest, PixelsSpanMinusOneToOne) {
  std::vector<float> values;
  AppendScaled({.channels = 1, .height = 1, .width = 3, .pixels = {0, 255, 51}}, &values);
  EXPECT_FLOAT_EQ(values[0], -1);
  EXPECT_FLOAT_EQ(values[1], 1);
  EXPECT_FLOAT_EQ(values[2], -0.6F);
}

}  // namespace
}  // namespace atl::dataset
