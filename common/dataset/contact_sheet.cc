#include "common/dataset/contact_sheet.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/dataset/bitmap_font.h"
#include "common/dataset/image_codec.h"
#include "fmt/format.h"

namespace atl::dataset {
namespace {

using Colour = std::array<uint8_t, 3>;

constexpr Colour kBackground = {233, 234, 238};
constexpr Colour kInk = {52, 56, 66};
constexpr Colour kFrame = {206, 208, 216};
constexpr int64_t kMargin = 20;
constexpr int64_t kGap = 6;
constexpr int64_t kRowGap = 10;
constexpr int64_t kLabelGap = 14;
constexpr int64_t kLabelScale = 2;
constexpr int64_t kTitleScale = 3;
constexpr size_t kLongestText = 40;
constexpr int64_t kMaxImages = 1'000'000;

absl::Status BadSheet(const std::string& message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "CONTACT_SHEET", "contact sheet: " + message);
}

std::string Shortened(std::string_view text) {
  if (text.size() <= kLongestText) return std::string(text);
  return std::string(text.substr(0, kLongestText - 2)) + "..";
}

int64_t TextWidth(const std::string& text, int64_t scale) {
  return text.empty() ? 0 : (static_cast<int64_t>(text.size()) * (kGlyphWidth + 1) - 1) * scale;
}

class Canvas {
 public:
  Canvas(int64_t height, int64_t width)
      : image_{.channels = 3, .height = static_cast<int32_t>(height), .width = static_cast<int32_t>(width)} {
    image_.pixels.resize(static_cast<size_t>(3 * height * width));
    Fill(0, 0, height, width, kBackground);
  }

  void Fill(int64_t top, int64_t left, int64_t height, int64_t width, const Colour& colour) {
    for (int64_t y = top; y < top + height; ++y) {
      for (int64_t x = left; x < left + width; ++x) Set(y, x, colour);
    }
  }

  void Text(int64_t top, int64_t left, int64_t scale, const std::string& text) {
    for (const char c : text) {
      const uint8_t* columns = GlyphColumns(c);
      for (int64_t x = 0; x < kGlyphWidth; ++x) {
        for (int64_t y = 0; y < kGlyphHeight; ++y) {
          if ((columns[x] >> y & 1) != 0) Fill(top + y * scale, left + x * scale, scale, scale, kInk);
        }
      }
      left += (kGlyphWidth + 1) * scale;
    }
  }

  // Enlarged by whole pixels, in a thin frame.
  void Draw(int64_t top, int64_t left, int64_t factor, const Image& image) {
    Fill(top - 1, left - 1, image.height * factor + 2, image.width * factor + 2, kFrame);
    const int32_t channels = image.channels;
    for (int64_t y = 0; y < image.height; ++y) {
      for (int64_t x = 0; x < image.width; ++x) {
        const uint8_t* pixel = &image.pixels[static_cast<size_t>((y * image.width + x) * channels)];
        const Colour colour = {pixel[0], pixel[channels == 3 ? 1 : 0], pixel[channels == 3 ? 2 : 0]};
        Fill(top + y * factor, left + x * factor, factor, factor, colour);
      }
    }
  }

  Image Take() { return std::move(image_); }

 private:
  void Set(int64_t y, int64_t x, const Colour& colour) {
    std::copy(colour.begin(), colour.end(), image_.pixels.begin() + 3 * (y * image_.width + x));
  }

  Image image_;
};

// Sizes of everything, in pixels.
struct Layout {
  int64_t factor = 1;
  int64_t cell_height = 0;
  int64_t cell_width = 0;
  int64_t columns = 0;
  int64_t label_width = 0;
  int64_t title_height = 0;
  int64_t height = 0;
  int64_t width = 0;
};

int64_t LinesOf(const SheetRow& row, const Layout& layout) {
  return std::max<int64_t>(1, (static_cast<int64_t>(row.images.size()) + layout.columns - 1) / layout.columns);
}

absl::StatusOr<Layout> Arrange(const std::vector<SheetRow>& rows, const SheetOptions& options) {
  int64_t tallest = 0;
  int64_t widest = 0;
  int64_t images = 0;
  Layout layout;
  for (const SheetRow& row : rows) {
    for (const Image& image : row.images) {
      const int64_t size = int64_t{image.channels} * image.height * image.width;
      if ((image.channels != 1 && image.channels != 3) || image.height < 1 || image.width < 1 ||
          size != static_cast<int64_t>(image.pixels.size())) {
        return BadSheet(fmt::format("row '{}': expected images of 1 or 3 channels and all their pixels", row.label));
      }
      tallest = std::max<int64_t>(tallest, image.height);
      widest = std::max<int64_t>(widest, image.width);
    }
    images += static_cast<int64_t>(row.images.size());
    layout.columns = std::max(layout.columns, static_cast<int64_t>(row.images.size()));
    layout.label_width = std::max(layout.label_width, TextWidth(Shortened(row.label), kLabelScale));
  }
  if (images < 1 || images > kMaxImages) {
    return BadSheet(fmt::format("expected 1 to {} images, found {}", kMaxImages, images));
  }
  if (options.columns > 0) layout.columns = std::min<int64_t>(layout.columns, options.columns);
  layout.factor = std::max<int64_t>(1, options.cell_pixels / std::max(tallest, widest));
  layout.cell_height = tallest * layout.factor;
  layout.cell_width = widest * layout.factor;
  if (layout.label_width > 0) layout.label_width += kLabelGap;
  layout.title_height = options.title.empty() ? 0 : kGlyphHeight * kTitleScale + kMargin;
  layout.width = 2 * kMargin + std::max(layout.label_width + layout.columns * (layout.cell_width + kGap) - kGap,
                                        TextWidth(Shortened(options.title), kTitleScale));
  layout.height = 2 * kMargin + layout.title_height - kRowGap;
  for (const SheetRow& row : rows) {
    layout.height += LinesOf(row, layout) * (layout.cell_height + kGap) - kGap + kRowGap;
  }
  if (layout.height * layout.width > kMaxPixels) {
    return BadSheet(fmt::format("expected at most {} pixels, found {} x {}", kMaxPixels, layout.height, layout.width));
  }
  return layout;
}

}  // namespace

absl::StatusOr<Image> DrawContactSheet(const std::vector<SheetRow>& rows, const SheetOptions& options) {
  ATOLL_ASSIGN_OR_RETURN(const Layout layout, Arrange(rows, options));
  Canvas canvas(layout.height, layout.width);
  canvas.Text(kMargin, kMargin, kTitleScale, Shortened(options.title));
  int64_t top = kMargin + layout.title_height;
  for (const SheetRow& row : rows) {
    const int64_t text_top = top + (layout.cell_height - kGlyphHeight * kLabelScale) / 2;
    canvas.Text(std::max<int64_t>(text_top, 0), kMargin, kLabelScale, Shortened(row.label));
    for (size_t i = 0; i < row.images.size(); ++i) {
      const Image& image = row.images[i];
      const int64_t line = static_cast<int64_t>(i) / layout.columns;
      const int64_t column = static_cast<int64_t>(i) % layout.columns;
      const int64_t cell_top = top + line * (layout.cell_height + kGap);
      const int64_t cell_left = kMargin + layout.label_width + column * (layout.cell_width + kGap);
      canvas.Draw(cell_top + (layout.cell_height - image.height * layout.factor) / 2,
                  cell_left + (layout.cell_width - image.width * layout.factor) / 2, layout.factor, image);
    }
    top += LinesOf(row, layout) * (layout.cell_height + kGap) - kGap + kRowGap;
  }
  return canvas.Take();
}

}  // namespace atl::dataset
