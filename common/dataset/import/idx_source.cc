#include <array>
#include <utility>

#include "common/base/status_macros.h"
#include "common/dataset/image_formats.h"
#include "common/dataset/import/import_source.h"
#include "fmt/format.h"

namespace atl::dataset {
namespace {

constexpr uint32_t kImagesMagic = 0x00000803;  // bytes, three dimensions
constexpr uint32_t kLabelsMagic = 0x00000801;  // bytes, one dimension

absl::StatusOr<uint32_t> ReadBigEndian(InputStream* input, std::string_view file, std::string_view what) {
  std::array<char, 4> bytes;
  ATOLL_ASSIGN_OR_RETURN(const size_t got, input->Read(bytes.data(), bytes.size()));
  if (got != bytes.size()) {
    return MalformedSource(file, fmt::format("{}: expected 4 bytes, found {}: the file is cut short", what, got));
  }
  uint32_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

absl::Status ExpectMagic(InputStream* input, std::string_view file, uint32_t magic) {
  ATOLL_ASSIGN_OR_RETURN(const uint32_t found, ReadBigEndian(input, file, "magic number"));
  if (found == magic) return absl::OkStatus();
  return MalformedSource(file, fmt::format("magic number: expected 0x{:08x} (IDX {}), found 0x{:08x}", magic,
                                           magic == kImagesMagic ? "images" : "labels", found));
}

class IdxSource : public Source {
 public:
  IdxSource(std::unique_ptr<InputStream> images, std::string images_file, std::unique_ptr<InputStream> labels,
            std::string labels_file)
      : images_(std::move(images)),
        images_file_(std::move(images_file)),
        labels_(std::move(labels)),
        labels_file_(std::move(labels_file)) {}

  absl::Status ReadHeaders() {
    ATOLL_RETURN_IF_ERROR(ExpectMagic(images_.get(), images_file_, kImagesMagic));
    ATOLL_ASSIGN_OR_RETURN(count_, ReadBigEndian(images_.get(), images_file_, "number of images"));
    ATOLL_ASSIGN_OR_RETURN(height_, ReadBigEndian(images_.get(), images_file_, "height"));
    ATOLL_ASSIGN_OR_RETURN(width_, ReadBigEndian(images_.get(), images_file_, "width"));
    if (const absl::Status size = CheckImageSize(1, height_, width_, "image size"); !size.ok()) {
      return MalformedSource(images_file_, std::string(size.message()));
    }
    ATOLL_RETURN_IF_ERROR(ExpectMagic(labels_.get(), labels_file_, kLabelsMagic));
    ATOLL_ASSIGN_OR_RETURN(const uint32_t labels, ReadBigEndian(labels_.get(), labels_file_, "number of labels"));
    if (labels == count_) return absl::OkStatus();
    return MalformedSource(labels_file_, fmt::format("expected {} labels, as there are images in {}, found {}", count_,
                                                     images_file_, labels));
  }

  absl::StatusOr<bool> Next(SourceRow* row) override {
    if (next_ == count_) {
      ATOLL_RETURN_IF_ERROR(ExpectEnd(images_.get(), images_file_));
      ATOLL_RETURN_IF_ERROR(ExpectEnd(labels_.get(), labels_file_));
      return false;
    }
    Image image{.channels = 1, .height = static_cast<int32_t>(height_), .width = static_cast<int32_t>(width_)};
    image.pixels.resize(static_cast<size_t>(height_) * width_);
    ATOLL_RETURN_IF_ERROR(ReadRow(images_.get(), images_file_, "image", reinterpret_cast<char*>(image.pixels.data()),
                                  image.pixels.size()));
    char label = 0;
    ATOLL_RETURN_IF_ERROR(ReadRow(labels_.get(), labels_file_, "label", &label, 1));
    row->where = fmt::format("{}: image {}", images_file_, next_);
    row->path = fmt::format("image-{}", next_);
    row->image = std::move(image);
    row->label = static_cast<uint8_t>(label);
    ++next_;
    return true;
  }

 private:
  absl::Status ReadRow(InputStream* input, const std::string& file, const char* what, char* out, size_t size) const {
    ATOLL_ASSIGN_OR_RETURN(const size_t got, input->Read(out, size));
    if (got == size) return absl::OkStatus();
    return MalformedSource(file, fmt::format("expected {} {}s of {} bytes, found the file cut short in {} {} after {} "
                                             "of its bytes",
                                             count_, what, size, what, next_, got));
  }

  absl::Status ExpectEnd(InputStream* input, const std::string& file) const {
    char extra = 0;
    ATOLL_ASSIGN_OR_RETURN(const size_t got, input->Read(&extra, 1));
    if (got == 0) return absl::OkStatus();
    return MalformedSource(file, fmt::format("expected the end after {} rows, found more bytes", count_));
  }

  const std::unique_ptr<InputStream> images_;
  const std::string images_file_;
  const std::unique_ptr<InputStream> labels_;
  const std::string labels_file_;
  uint32_t count_ = 0;
  uint32_t height_ = 0;
  uint32_t width_ = 0;
  uint32_t next_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Source>> MakeIdxSource(std::unique_ptr<InputStream> images, std::string images_file,
                                                      std::unique_ptr<InputStream> labels, std::string labels_file) {
  auto source =
      std::make_unique<IdxSource>(std::move(images), std::move(images_file), std::move(labels), std::move(labels_file));
  ATOLL_RETURN_IF_ERROR(source->ReadHeaders());
  return source;
}

}  // namespace atl::dataset
