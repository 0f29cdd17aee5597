#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "common/dataset/import_source.h"
#include "fmt/format.h"

namespace atl::dataset {
namespace {

constexpr int32_t kSide = 8;
constexpr int kBrightest = 16;
constexpr size_t kLongestLine = 4096;

class DigitsCsvSource : public Source {
 public:
  DigitsCsvSource(std::unique_ptr<InputStream> input, std::string file)
      : input_(std::move(input)), file_(std::move(file)) {}

  absl::StatusOr<bool> Next(SourceRow* row) override {
    std::string line;
    for (;;) {
      ATOLL_ASSIGN_OR_RETURN(const bool more, ReadLine(&line));
      if (!more) return false;
      ++number_;
      if (!line.empty()) break;
    }
    row->where = fmt::format("{}: line {}", file_, number_);
    row->path = fmt::format("line-{}", number_);
    row->problem = ParseRow(line, row);
    return true;
  }

 private:
  // A line without its end, cut after kLongestLine characters. False at the end of the file.
  absl::StatusOr<bool> ReadLine(std::string* line) {
    line->clear();
    bool any = false;
    for (;;) {
      if (next_ == buffer_.size()) {
        buffer_.resize(size_t{1} << 16);
        ATOLL_ASSIGN_OR_RETURN(const size_t got, input_->Read(buffer_.data(), buffer_.size()));
        buffer_.resize(got);
        next_ = 0;
        if (got == 0) return any;
      }
      any = true;
      const char c = buffer_[next_++];
      if (c == '\n') return true;
      if (c != '\r' && line->size() <= kLongestLine) line->push_back(c);
    }
  }

  // Why the line is no digit, or nothing.
  static std::string ParseRow(std::string_view line, SourceRow* row) {
    constexpr int64_t kPixels = kSide * kSide;
    if (line.size() > kLongestLine) return fmt::format("expected a line of at most {} characters", kLongestLine);
    const auto fields = std::count(line.begin(), line.end(), ',') + 1;
    if (fields != kPixels + 1) return fmt::format("expected {} fields, found {}", kPixels + 1, fields);
    Image image{.channels = 1, .height = kSide, .width = kSide};
    for (int64_t field = 0; field <= kPixels; ++field) {
      const size_t end = std::min(line.find(','), line.size());
      const LabelText value = ParseLabel(line.substr(0, end));
      line.remove_prefix(std::min(end + 1, line.size()));
      const int64_t highest = field < kPixels ? kBrightest : kMaxClasses - 1;
      if (!value.is_number || value.number < 0 || value.number > highest) {
        return fmt::format("field {}: expected an integer from 0 to {}, found '{}'", field + 1, highest,
                           value.text.substr(0, 60));
      }
      if (field == kPixels) {
        row->label = value.number;
      } else {
        image.pixels.push_back(static_cast<uint8_t>((value.number * 255 + kBrightest / 2) / kBrightest));
      }
    }
    row->image = std::move(image);
    return "";
  }

  const std::unique_ptr<InputStream> input_;
  const std::string file_;
  std::string buffer_;
  size_t next_ = 0;
  int64_t number_ = 0;
};

}  // namespace

std::unique_ptr<Source> MakeDigitsCsvSource(std::unique_ptr<InputStream> input, std::string file) {
  return std::make_unique<DigitsCsvSource>(std::move(input), std::move(file));
}

}  // namespace atl::dataset
