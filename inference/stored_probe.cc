#include "inference/stored_probe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/storage/safetensors.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace atl::router {
namespace {

// Answers that are nearly zero are compared with this per value.
constexpr double kSmallAnswer = 1e-3;

absl::Status Malformed(std::string_view file_name, std::string_view why) {
  return MakeError(absl::StatusCode::kDataLoss, "PROBE_MALFORMED", fmt::format("{}: {}", file_name, why));
}

// Reads tensors of a probe; `rows` is what the first one has.
class ProbeReader {
 public:
  ProbeReader(const storage::Safetensors* file, std::string_view file_name) : file_(file), file_name_(file_name) {}

  template <typename T>
  absl::StatusOr<std::vector<T>> Read(std::string_view name, std::string_view dtype,
                                      const std::vector<int64_t>& shape) {
    const absl::StatusOr<storage::TensorView> found = file_->Find(name);
    if (!found.ok()) return Malformed(file_name_, fmt::format("expected a tensor '{}', found none", name));
    if (found->dtype != dtype || found->shape != shape) {
      return Malformed(file_name_, fmt::format("{}: expected {} [{}], found {} [{}]", name, dtype,
                                               fmt::join(shape, ", "), found->dtype, fmt::join(found->shape, ", ")));
    }
    std::vector<T> values(found->bytes.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), found->bytes.data(), found->bytes.size());
    return values;
  }

 private:
  const storage::Safetensors* const file_;
  const std::string_view file_name_;
};

double Norm(std::span<const float> values) {
  double squares = 0;
  for (const float value : values) squares += double{value} * double{value};
  return std::sqrt(squares);
}

}  // namespace

absl::StatusOr<StoredProbe> ParseStoredProbe(std::string_view bytes, const storage::ModelIndex& index, int32_t expert,
                                             std::string_view file_name) {
  ATOLL_ASSIGN_OR_RETURN(const storage::Safetensors file, storage::ParseSafetensors(bytes, file_name));
  const absl::StatusOr<storage::TensorView> times = file.Find("t");
  if (!times.ok() || times->shape.size() != 1 || times->shape[0] < 1) {
    return Malformed(file_name, "expected a tensor 't' of at least one time");
  }
  const int64_t rows = times->shape[0];
  const std::vector<int64_t> shape = {rows, index.channels, index.height, index.width};
  ProbeReader reader(&file, file_name);
  StoredProbe probe{.rows = {.count = rows}};
  ATOLL_ASSIGN_OR_RETURN(probe.rows.t, reader.Read<float>("t", "F32", {rows}));
  ATOLL_ASSIGN_OR_RETURN(probe.rows.x, reader.Read<float>("x", "F32", shape));
  ATOLL_ASSIGN_OR_RETURN(probe.rows.classes, reader.Read<int64_t>("class", "I64", {rows}));
  const auto null_class = static_cast<int64_t>(index.classes.size());
  if (!std::all_of(probe.rows.classes.begin(), probe.rows.classes.end(),
                   [&](int64_t row) { return row >= 0 && row <= null_class; })) {
    return Malformed(file_name, fmt::format("class: expected 0 to {}, found others", null_class));
  }
  if (expert == kRouterNetwork) {
    ATOLL_ASSIGN_OR_RETURN(probe.answers, reader.Read<float>("posterior", "F32", {rows, index.experts}));
    return probe;
  }
  if (index.self_conditioning) {
    ATOLL_ASSIGN_OR_RETURN(probe.rows.estimate, reader.Read<float>("estimate", "F32", shape));
  }
  ATOLL_ASSIGN_OR_RETURN(probe.answers, reader.Read<float>(fmt::format("velocity.{}", expert), "F32", shape));
  return probe;
}

absl::StatusOr<std::optional<StoredProbe>> ReadStoredProbe(const VersionFiles& files, int32_t expert) {
  const storage::ModelIndex& index = files.index;
  if (index.probe.empty()) return std::nullopt;
  const auto file = std::find_if(index.files.begin(), index.files.end(),
                                 [&](const storage::CheckpointFile& entry) { return entry.name == index.probe; });
  const std::string uri = fmt::format("{}/{}", files.folder_uri, index.probe);
  ATOLL_ASSIGN_OR_RETURN(const std::string bytes, files.store->ReadVerified(uri, file->sha256));
  ATOLL_ASSIGN_OR_RETURN(StoredProbe probe, ParseStoredProbe(bytes, index, expert, uri));
  return probe;
}

absl::Status CheckAnswers(const StoredProbe& probe, std::span<const float> found, double tolerance,
                          std::string_view name) {
  double off = std::numeric_limits<double>::infinity();
  if (found.size() == probe.answers.size()) {
    std::vector<float> difference(found.size());
    for (size_t i = 0; i < found.size(); ++i) difference[i] = found[i] - probe.answers[i];
    const double floor = kSmallAnswer * std::sqrt(static_cast<double>(found.size()));
    off = Norm(difference) / std::max(Norm(probe.answers), floor);
  }
  // Written so that NaN fails.
  if (off <= tolerance) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDataLoss, "PROBE_MISMATCH",
                   fmt::format("{}: expected the answers that were stored when the version was published, to {:.0e} of "
                               "them; found answers that are {:.2e} off",
                               name, tolerance, off));
}

}  // namespace atl::router
