#include <turbojpeg.h>

#include "absl/cleanup/cleanup.h"
#include "common/base/status_macros.h"
#include "common/dataset/image_formats.h"
#include "fmt/format.h"

namespace atl::dataset {

absl::StatusOr<Image> DecodeJpeg(std::string_view bytes, std::string_view where) {
  const tjhandle decoder = tjInitDecompress();
  if (decoder == nullptr) return UnreadableImage(where, "JPEG: the decoder does not start");
  const absl::Cleanup destroy = [decoder] { tjDestroy(decoder); };
  const auto failed = [&] { return UnreadableImage(where, fmt::format("JPEG: {}", tjGetErrorStr2(decoder))); };
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  int width = 0;
  int height = 0;
  int sampling = 0;
  int colours = 0;
  if (tjDecompressHeader3(decoder, data, bytes.size(), &width, &height, &sampling, &colours) != 0) return failed();
  if (colours == TJCS_CMYK || colours == TJCS_YCCK) {
    return UnreadableImage(where, "JPEG: expected grey, YCbCr or RGB, found CMYK");
  }
  const bool grey = colours == TJCS_GRAY;
  Image image{.channels = grey ? 1 : 3, .height = height, .width = width};
  ATOLL_RETURN_IF_ERROR(CheckImageSize(image.channels, height, width, where));
  image.pixels.resize(static_cast<size_t>(image.channels) * height * width);
  // A file cut short is a warning to the decoder; here it is a broken image. A progressive file may ask for many scans
  // over the whole picture.
  constexpr int kFlags = TJFLAG_STOPONWARNING | TJFLAG_LIMITSCANS | TJFLAG_ACCURATEDCT;
  if (tjDecompress2(decoder, data, bytes.size(), image.pixels.data(), width, 0, height, grey ? TJPF_GRAY : TJPF_RGB,
                    kFlags) != 0) {
    return failed();
  }
  return image;
}

}  // namespace atl::dataset
