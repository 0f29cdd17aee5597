#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "common/base/status_macros.h"
#include "common/dataset/image_codec.h"
#include "common/dataset/import/import_source.h"
#include "common/dataset/import/tar_reader.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace atl::dataset {
namespace {

constexpr int64_t kMaxLabelBytes = int64_t{1} << 20;

// Members of one sample share the name up to the first dot of the base name, and stand next to each other.
struct TarSample {
  std::string key;
  std::string problem;
  std::set<std::string> suffixes;
  std::string image;
  bool has_image = false;
  // By preference: cls, then json, then txt.
  std::optional<LabelText> label;
  int label_rank = 0;
};

bool IsImageSuffix(std::string_view suffix) {
  return suffix == "jpg" || suffix == "jpeg" || suffix == "png" || suffix == "webp";
}

// 0 for a member that holds no label.
int LabelRank(std::string_view suffix) {
  if (suffix == "cls") return 3;
  if (suffix == "json") return 2;
  return suffix == "txt" ? 1 : 0;
}

// "label", "cls" or "class" of an object. Nothing when there is none.
std::optional<LabelText> LabelOfJson(std::string_view text) {
  const nlohmann::json object = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return std::nullopt;
  for (const char* name : {"label", "cls", "class"}) {
    const auto field = object.find(name);
    if (field == object.end()) continue;
    if (field->is_string()) return ParseLabel(field->get<std::string>());
    if (field->is_number_integer()) return ParseLabel(field->dump());
  }
  return std::nullopt;
}

// All samples of several tars.
class TarSamples {
 public:
  TarSamples(const std::vector<std::string>& files, const InputOpener& opener, bool with_images)
      : files_(files), opener_(opener), with_images_(with_images) {}

  absl::StatusOr<bool> Next(TarSample* sample) {
    for (;;) {
      if (tar_ == nullptr) {
        if (next_file_ == files_.size()) return false;
        file_ = files_[next_file_++];
        ATOLL_ASSIGN_OR_RETURN(auto input, opener_(file_));
        ATOLL_ASSIGN_OR_RETURN(tar_, TarReader::Open(std::move(input), file_));
        ATOLL_ASSIGN_OR_RETURN(at_member_, tar_->Next());
      }
      if (at_member_) break;
      tar_ = nullptr;
    }
    *sample = {.key = KeyOf(tar_->name())};
    while (at_member_ && KeyOf(tar_->name()) == sample->key) {
      ATOLL_RETURN_IF_ERROR(AddMember(sample));
      ATOLL_ASSIGN_OR_RETURN(at_member_, tar_->Next());
    }
    return true;
  }

  const std::string& file() const { return file_; }

 private:
  static size_t DotOf(const std::string& name) {
    const size_t slash = name.rfind('/');
    return std::min(name.find('.', slash == std::string::npos ? 0 : slash + 1), name.size());
  }
  static std::string KeyOf(const std::string& name) { return name.substr(0, DotOf(name)); }

  absl::Status AddMember(TarSample* sample) {
    const std::string& name = tar_->name();
    const std::string suffix = absl::AsciiStrToLower(name.substr(std::min(DotOf(name) + 1, name.size())));
    if (!sample->suffixes.insert(suffix).second) {
      sample->problem = fmt::format("expected each member once, found '.{}' twice", suffix);
      return absl::OkStatus();
    }
    if (IsImageSuffix(suffix)) return AddImage(sample, suffix);
    const int rank = LabelRank(suffix);
    if (rank <= sample->label_rank) return absl::OkStatus();
    if (tar_->size() > kMaxLabelBytes) {
      sample->problem = fmt::format("'.{}': expected at most {} bytes, found {}", suffix, kMaxLabelBytes, tar_->size());
      return absl::OkStatus();
    }
    ATOLL_ASSIGN_OR_RETURN(const std::string text, tar_->ReadContent());
    std::optional<LabelText> label = suffix == "json" ? LabelOfJson(text) : ParseLabel(text);
    if (!label.has_value()) return absl::OkStatus();
    sample->label = std::move(label);
    sample->label_rank = rank;
    return absl::OkStatus();
  }

  absl::Status AddImage(TarSample* sample, const std::string& suffix) {
    if (sample->has_image) {
      sample->problem = fmt::format("expected one image, found a second, '.{}'", suffix);
      return absl::OkStatus();
    }
    sample->has_image = true;
    if (tar_->size() > kMaxImageBytes) {
      sample->problem = fmt::format("image: expected at most {} bytes, found {}", kMaxImageBytes, tar_->size());
      return absl::OkStatus();
    }
    if (!with_images_) return absl::OkStatus();
    ATOLL_ASSIGN_OR_RETURN(sample->image, tar_->ReadContent());
    return absl::OkStatus();
  }

  const std::vector<std::string>& files_;
  const InputOpener& opener_;
  const bool with_images_;
  size_t next_file_ = 0;
  std::string file_;
  std::unique_ptr<TarReader> tar_;
  bool at_member_ = false;
};

class WebDatasetSource : public Source {
 public:
  WebDatasetSource(std::vector<std::string> files, InputOpener opener)
      : files_(std::move(files)), opener_(std::move(opener)), samples_(files_, opener_, /*with_images=*/true) {}

  // The first label shows whether labels are numbers or names. Names are collected from all tars, so that they can be
  // numbered in sorted order.
  absl::Status LearnLabels() {
    TarSamples samples(files_, opener_, /*with_images=*/false);
    std::set<std::string> names;
    for (;;) {
      TarSample sample;
      ATOLL_ASSIGN_OR_RETURN(const bool more, samples.Next(&sample));
      if (!more) break;
      if (!sample.label.has_value()) continue;
      if (names.empty() && sample.label->is_number) return absl::OkStatus();
      names.insert(sample.label->text);
      if (static_cast<int64_t>(names.size()) > kMaxClasses) break;
    }
    if (names.empty()) return absl::OkStatus();
    ATOLL_ASSIGN_OR_RETURN(labels_, LabelMap::OfNames({names.begin(), names.end()}, files_.front()));
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Next(SourceRow* row) override {
    TarSample sample;
    ATOLL_ASSIGN_OR_RETURN(const bool more, samples_.Next(&sample));
    if (!more) return false;
    row->where = fmt::format("{}: {}", samples_.file(), sample.key);
    row->path = sample.key;
    row->problem = std::move(sample.problem);
    if (!row->problem.empty()) return true;
    if (!sample.has_image) {
      row->problem = "expected a .jpg, .jpeg, .png or .webp member, found none (members of a sample stand together)";
    } else if (!sample.label.has_value()) {
      row->problem =
          "expected a label in a .cls, .json or .txt member, found none (members of a sample stand together)";
    } else if (labels_.Resolve(*sample.label, &row->label, &row->problem)) {
      row->encoded = std::move(sample.image);
    }
    return true;
  }

  std::vector<std::string> classes() const override { return labels_.names(); }

 private:
  const std::vector<std::string> files_;
  const InputOpener opener_;
  LabelMap labels_;
  TarSamples samples_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Source>> MakeWebDatasetSource(std::vector<std::string> files, InputOpener opener) {
  auto source = std::make_unique<WebDatasetSource>(std::move(files), std::move(opener));
  ATOLL_RETURN_IF_ERROR(source->LearnLabels());
  return source;
}

}  // namespace atl::dataset
