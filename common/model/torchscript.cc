#include "common/model/torchscript.h"

#include <algorithm>
#include <array>
#include <exception>
#include <sstream>
#include <utility>
#include <vector>

#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/serialization/import.h>

#include "absl/strings/ascii.h"
#include "common/base/errors.h"

namespace atl::model {
namespace {

// aten::from_file maps any file and may make it; aten::save writes one.
constexpr std::array<std::string_view, 2> kFileOperators = {"from_file", "save"};
// Of `ops.<namespace>.<operator>`. Others belong to extensions, remote calls and process groups.
constexpr std::array<std::string_view, 4> kTensorNamespaces = {"aten", "prim", "prepacked", "quantized"};
// Of `torch.classes.<namespace>.<class>`.
constexpr std::array<std::string_view, 1> kTensorClasses = {"quantized"};

constexpr size_t kQuoted = 300;

template <size_t n>
bool Holds(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// What a file that LibTorch does not load is. Where the archive itself is at fault, `said` speaks of the library's
// parts.
std::string WhyUnreadable(std::string_view bytes, const std::string& said) {
  constexpr size_t kFarthestEnd = (1 << 16) + 22;  // a zip archive's last record, and a comment
  if (!bytes.starts_with("PK\x03\x04")) return fmt::format("{} bytes that are no archive", bytes.size());
  const std::string_view tail = bytes.substr(bytes.size() - std::min(bytes.size(), kFarthestEnd));
  if (tail.find("PK\x05\x06") == std::string_view::npos) return fmt::format("one cut off after {} bytes", bytes.size());
  if (said.find("PytorchStreamReader") != std::string::npos)
    return fmt::format("a damaged one of {} bytes", bytes.size());
  return "one that does not load: " + said;
}

bool Refused(const std::vector<std::string_view>& path) {
  for (size_t i = 0; i < path.size(); ++i) {
    if (Holds(kFileOperators, path[i])) return true;
    const bool outermost = i == 0 || path[i - 1] == "torch";
    if (i + 1 == path.size() || !outermost) continue;
    if (path[i] == "ops" && !Holds(kTensorNamespaces, path[i + 1])) return true;
    if (path[i] == "classes" && !Holds(kTensorClasses, path[i + 1])) return true;
  }
  return false;
}

}  // namespace

std::string FirstLine(const char* what) {
  const std::string_view text(what);
  return std::string(text.substr(0, std::min(text.find('\n'), kQuoted)));
}

std::optional<std::string> RefusedOperator(std::string_view code) {
  // Strings and comments are read as code is: whoever would tell them apart otherwise than LibTorch does could be
  // fooled.
  std::vector<std::string_view> path;
  bool dotted = false;  // a dot since the last name
  for (size_t i = 0; i < code.size();) {
    const char c = code[i];
    if (absl::ascii_isalpha(c) || c == '_') {
      size_t end = i + 1;
      while (end < code.size() && (absl::ascii_isalnum(code[end]) || code[end] == '_')) ++end;
      if (!std::exchange(dotted, false)) path.clear();
      path.push_back(code.substr(i, end - i));
      if (Refused(path)) return fmt::format("{}", fmt::join(path, "."));
      i = end;
      continue;
    }
    if (c == '.') {
      dotted = true;
    } else if (!absl::ascii_isspace(c) && c != '\\') {
      path.clear();
      dotted = false;
    }
    ++i;
  }
  return std::nullopt;
}

absl::StatusOr<torch::jit::Module> LoadTorchScript(const std::string& archive, const std::string& device,
                                                   const std::string& field, const std::string& uri) {
  try {
    std::istringstream stream(archive);
    caffe2::serialize::PyTorchStreamReader reader(&stream);
    for (const std::string& record : reader.getAllRecords()) {
      if (!record.ends_with(".py")) continue;
      const auto [data, size] = reader.getRecord(record);
      const std::string_view code(static_cast<const char*>(data.get()), size);
      if (const std::optional<std::string> refused = RefusedOperator(code)) {
        return FieldError(
            field, "TORCHSCRIPT_REFUSED",
            fmt::format("{}: expected operators on tensors alone, found {} in {}", uri, *refused, record));
      }
    }
    stream.clear();
    stream.seekg(0);
    torch::jit::Module module = torch::jit::load(stream, at::Device(device));
    module.eval();
    return module;
  } catch (const std::exception& error) {
    return FieldError(field, "TORCHSCRIPT_FILE",
                      fmt::format("{}: expected a TorchScript archive, found {}", uri,
                                  WhyUnreadable(archive, FirstLine(error.what()))));
  }
}

}  // namespace atl::model
