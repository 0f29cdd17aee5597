#include "common/storage/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/storage/json_reader.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"

namespace atl::storage {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors files are little endian, and so are the views");

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr char kMetadataKey[] = "__metadata__";

// 0 for a dtype that Atoll does not know.
int64_t DtypeBytes(std::string_view dtype) {
  static constexpr std::pair<std::string_view, int64_t> kSizes[] = {{"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2},
                                                                    {"I64", 8}, {"I32", 4}, {"I16", 2}, {"I8", 1},
                                                                    {"U8", 1},  {"BOOL", 1}};
  for (const auto& [name, bytes] : kSizes) {
    if (name == dtype) return bytes;
  }
  return 0;
}

// Bytes of a tensor, or nothing when a size is negative or the product overflows.
std::optional<int64_t> TensorBytes(std::string_view dtype, const std::vector<int64_t>& shape) {
  int64_t bytes = DtypeBytes(dtype);
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return bytes;
}

absl::Status Malformed(std::string_view file, const std::string& message) {
  return MakeError(absl::StatusCode::kDataLoss, "SAFETENSORS_MALFORMED", fmt::format("{}: {}", file, message));
}

absl::Status UnknownDtype(std::string_view where, std::string_view dtype) {
  return MakeError(
      absl::StatusCode::kInvalidArgument, "DTYPE_UNKNOWN",
      fmt::format("{}: expected one of F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL, found '{}'", where, dtype));
}

struct Entry {
  TensorView view;
  int64_t begin = 0;
  int64_t end = 0;
};

// The header's text, after checking its length against the file's.
absl::StatusOr<std::string_view> HeaderText(std::string_view bytes, std::string_view file) {
  if (bytes.size() < kLengthBytes) {
    return Malformed(file, fmt::format("expected at least 8 bytes, found {}", bytes.size()));
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  const uint64_t limit = std::min<uint64_t>(kMaxHeaderBytes, bytes.size() - kLengthBytes);
  if (length > limit) {
    return Malformed(file, fmt::format("header length: expected at most {} bytes, found {}", limit, length));
  }
  const std::string_view text = bytes.substr(kLengthBytes, length);
  if (!text.starts_with('{')) return Malformed(file, "header: expected it to start with '{', found otherwise");
  return text;
}

absl::StatusOr<Entry> ParseEntry(const std::string& name, const json& value, std::string_view file) {
  const std::string where = fmt::format("{}: tensor '{}'", file, name);
  if (!value.is_object()) return Malformed(file, fmt::format("tensor '{}': expected an object", name));
  JsonReader reader(value, where);
  Entry entry;
  entry.view.name = name;
  std::vector<int64_t> offsets;
  reader.Read("dtype", &entry.view.dtype);
  reader.Read("shape", &entry.view.shape);
  reader.Read("data_offsets", &offsets);
  if (!reader.status().ok()) {
    return MakeError(absl::StatusCode::kDataLoss, "SAFETENSORS_MALFORMED", std::string(reader.status().message()));
  }
  if (DtypeBytes(entry.view.dtype) == 0) return UnknownDtype(where, entry.view.dtype);
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    return Malformed(where, fmt::format("data_offsets: expected [begin, end], found [{}]", fmt::join(offsets, ", ")));
  }
  entry.begin = offsets[0];
  entry.end = offsets[1];
  const std::optional<int64_t> expected = TensorBytes(entry.view.dtype, entry.view.shape);
  if (!expected || *expected != entry.end - entry.begin) {
    return Malformed(where, fmt::format("expected {} bytes for {} [{}], found {}",
                                        expected ? fmt::to_string(*expected) : "fewer than 2^63", entry.view.dtype,
                                        fmt::join(entry.view.shape, ", "), entry.end - entry.begin));
  }
  return entry;
}

absl::Status ParseMetadata(const json& value, std::string_view file, std::map<std::string, std::string>* out) {
  if (!value.is_object()) return Malformed(file, "__metadata__: expected an object of strings");
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) return Malformed(file, fmt::format("__metadata__.{}: expected a string", key));
    out->emplace(key, text.get<std::string>());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> SerializeSafetensors(std::vector<TensorView> tensors,
                                                 const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorView& a, const TensorView& b) {
    const int64_t a_bytes = DtypeBytes(a.dtype);
    const int64_t b_bytes = DtypeBytes(b.dtype);
    return a_bytes != b_bytes ? a_bytes > b_bytes : a.name < b.name;
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  int64_t offset = 0;
  std::set<std::string_view> names = {kMetadataKey};
  for (const TensorView& tensor : tensors) {
    const std::string where = fmt::format("tensor '{}'", tensor.name);
    if (DtypeBytes(tensor.dtype) == 0) return UnknownDtype(where, tensor.dtype);
    if (!names.insert(tensor.name).second) {
      return MakeError(absl::StatusCode::kInvalidArgument, "TENSOR_REPEATED",
                       fmt::format("{}: expected each name once, and not '{}'", where, kMetadataKey));
    }
    const std::optional<int64_t> expected = TensorBytes(tensor.dtype, tensor.shape);
    if (!expected || static_cast<uint64_t>(*expected) != tensor.bytes.size()) {
      return MakeError(absl::StatusCode::kInvalidArgument, "TENSOR_SIZE",
                       fmt::format("{}: {} [{}] does not fit {} bytes", where, tensor.dtype,
                                   fmt::join(tensor.shape, ", "), tensor.bytes.size()));
    }
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + *expected}}};
    offset += *expected;
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  if (text.size() > kMaxHeaderBytes) {
    return MakeError(absl::StatusCode::kInvalidArgument, "HEADER_TOO_LARGE",
                     fmt::format("header: expected at most {} bytes, found {}", kMaxHeaderBytes, text.size()));
  }
  const uint64_t length = text.size();
  std::string file;
  file.reserve(kLengthBytes + text.size() + static_cast<size_t>(offset));
  file.append(reinterpret_cast<const char*>(&length), kLengthBytes);
  file += text;
  for (const TensorView& tensor : tensors) file += tensor.bytes;
  return file;
}

absl::StatusOr<TensorView> Safetensors::Find(std::string_view name) const {
  std::vector<std::string_view> names;
  for (const TensorView& tensor : tensors) {
    if (tensor.name == name) return tensor;
    names.push_back(tensor.name);
  }
  return MakeError(absl::StatusCode::kNotFound, "TENSOR_NOT_FOUND",
                   fmt::format("tensor '{}': expected it in the file, found [{}]", name, fmt::join(names, ", ")));
}

absl::StatusOr<Safetensors> ParseSafetensors(std::string_view bytes, std::string_view file_name) {
  ATOLL_ASSIGN_OR_RETURN(const std::string_view text, HeaderText(bytes, file_name));
  const auto header = ParseJsonObject(text, fmt::format("{}: header", file_name));
  if (!header.ok()) {
    return MakeError(absl::StatusCode::kDataLoss, "SAFETENSORS_MALFORMED", std::string(header.status().message()));
  }
  const std::string_view data = bytes.substr(kLengthBytes + text.size());
  Safetensors parsed;
  std::vector<Entry> entries;
  for (const auto& [name, value] : header->items()) {
    if (name == kMetadataKey) {
      ATOLL_RETURN_IF_ERROR(ParseMetadata(value, file_name, &parsed.metadata));
      continue;
    }
    ATOLL_ASSIGN_OR_RETURN(Entry entry, ParseEntry(name, value, file_name));
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  int64_t offset = 0;
  for (Entry& entry : entries) {
    if (entry.begin != offset || static_cast<uint64_t>(entry.end) > data.size()) {
      return Malformed(file_name, fmt::format("tensor '{}': expected data from offset {} to at most {}, found {} to {}",
                                              entry.view.name, offset, data.size(), entry.begin, entry.end));
    }
    entry.view.bytes = data.substr(static_cast<size_t>(entry.begin), static_cast<size_t>(entry.end - entry.begin));
    offset = entry.end;
    parsed.tensors.push_back(std::move(entry.view));
  }
  if (static_cast<uint64_t>(offset) != data.size()) {
    return Malformed(file_name, fmt::format("expected {} bytes of data, found {}", offset, data.size()));
  }
  return parsed;
}

}  // namespace atl::storage
