#include "common/model/torchscript.h"

#include <algorithm>
#include <array>
#include <exception>
#include <set>
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
// Allowed namespaces of `ops.<namespace>.<operator>`. Others belong to extensions, remote calls and process groups.
constexpr std::array<std::string_view, 4> kTensorNamespaces = {"aten", "prim", "prepacked", "quantized"};
// Allowed namespaces of `torch.classes.<namespace>.<class>`.
constexpr std::array<std::string_view, 1> kTensorClasses = {"quantized"};

constexpr size_t kQuoted = 300;

// A call of getattr that is longer was not written by LibTorch.
constexpr size_t kLongestGetattr = 4096;

template <size_t n>
bool Holds(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// LibTorch also reads mobile modules, which have no source to check, and recognises them by their fifth to eighth byte:
// a file can be both.
bool IsZip(std::string_view bytes) {
  return bytes.starts_with("PK\x03\x04") && bytes.substr(4, 4) != "PTMF";
}

// Describes a file that LibTorch does not load. `said` is LibTorch's own error, which is about its internals if the
// archive itself is at fault.
std::string WhyUnreadable(std::string_view bytes, const std::string& said) {
  constexpr size_t kFarthestEnd = (1 << 16) + 22;  // a zip archive's last record, and a comment
  if (!IsZip(bytes)) return fmt::format("{} bytes that are no archive", bytes.size());
  const std::string_view tail = bytes.substr(bytes.size() - std::min(bytes.size(), kFarthestEnd));
  if (tail.find("PK\x05\x06") == std::string_view::npos) return fmt::format("one cut off after {} bytes", bytes.size());
  if (said.find("PytorchStreamReader") != std::string::npos)
    return fmt::format("a damaged one of {} bytes", bytes.size());
  return "one that does not load: " + said;
}

bool IsIdentifier(std::string_view text) {
  return !text.empty() && !absl::ascii_isdigit(text[0]) &&
         std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

std::string_view FromFirstLetter(std::string_view text) {
  while (!text.empty() && absl::ascii_isspace(static_cast<unsigned char>(text[0]))) text.remove_prefix(1);
  return text;
}

// Returns whether a getattr call, whose text after the name is `code`, uses only names that are no identifiers ("0"),
// each one plain string. LibTorch writes no others; a string in pieces or with escapes could spell any operator.
bool PlainGetattr(std::string_view code) {
  code = FromFirstLetter(code.substr(0, kLongestGetattr));
  if (!code.starts_with('(')) return false;
  int open = 0;
  for (size_t i = 0; i < code.size(); ++i) {
    const char c = code[i];
    if (c == '(') {
      ++open;
    } else if (c == ')') {
      if (--open == 0) return true;
    } else if (c == '"') {
      const size_t end = code.find('"', i + 1);
      if (end == std::string_view::npos) return false;
      const std::string_view name = code.substr(i + 1, end - i - 1);
      if (IsIdentifier(name) || name.find_first_of("\\\n") != std::string_view::npos) return false;
      if (!FromFirstLetter(code.substr(end + 1)).starts_with(')')) return false;
      i = end;
    } else if (!absl::ascii_isalnum(c) && !absl::ascii_isspace(c) &&
               std::string_view("_.,[]").find(c) == std::string_view::npos) {
      return false;
    }
  }
  return false;
}

// Whether a namespace is no more than named: under another name what is taken from it would not be seen. `next` comes
// after it; behind a colon it is a member's name.
bool NamesNamespace(const std::vector<std::string_view>& path, char next) {
  if (path.empty()) return false;
  if (path.size() == 1) return path[0] == "ops" && next != ':';
  return path.back() == "torch" || (path.back() == "classes" && path[path.size() - 2] == "torch");
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

// Returns the first class in `pickle`, saved objects, whose loading would run operations on other than tensors.
std::optional<std::string> RefusedClass(std::string_view pickle) {
  constexpr std::string_view kClasses = "torch.classes.";
  for (size_t at = pickle.find(kClasses); at != std::string_view::npos; at = pickle.find(kClasses, at)) {
    at += kClasses.size();
    size_t end = at;
    while (end < pickle.size() && (absl::ascii_isalnum(pickle[end]) || pickle[end] == '_')) ++end;
    const std::string_view name = pickle.substr(at, end - at);
    if (!Holds(kTensorClasses, name)) return fmt::format("{}{}", kClasses, name);
  }
  return std::nullopt;
}

// Returns the first forbidden item of `reader`'s archive and its place, or nothing. LibTorch's errors are exceptions.
std::optional<std::string> RefusedRecord(caffe2::serialize::PyTorchStreamReader* reader) {
  std::set<std::string> names;
  for (const std::string& record : reader->getAllRecords()) {
    // LibTorch does not tell capitals from small letters when it looks a record up, and lists long names cut short.
    const std::string name = absl::AsciiStrToLower(record);
    if (!names.insert(name).second || !reader->hasRecord(record)) return "a name that is not one record's: " + record;
    // Older archives hold their code in records of any name.
    if (name == "model.json") return "an archive of before PyTorch 1.2";
    if (!name.ends_with(".py") && !name.ends_with(".pkl")) continue;
    const auto [data, size] = reader->getRecord(record);
    const std::string_view content(static_cast<const char*>(data.get()), size);
    const std::optional<std::string> refused = name.ends_with(".py") ? RefusedOperator(content) : RefusedClass(content);
    if (refused.has_value()) return fmt::format("{} in {}", *refused, record);
  }
  return std::nullopt;
}

}  // namespace

std::string FirstLine(const char* what) {
  const std::string_view text(what);
  return std::string(text.substr(0, std::min(text.find('\n'), kQuoted)));
}

std::optional<std::string> RefusedOperator(std::string_view code) {
  // Strings and comments are checked like code: a parser that separates them differently from LibTorch could be
  // deceived.
  std::vector<std::string_view> path;
  bool dotted = false;  // a dot since the last name
  for (size_t i = 0; i < code.size();) {
    const char c = code[i];
    const bool name = absl::ascii_isalpha(c) || c == '_';
    const bool within = c == '.' || c == '\\' || absl::ascii_isspace(c) || (name && dotted);
    if (!within && NamesNamespace(path, c)) return fmt::format("{}", fmt::join(path, "."));
    if (name) {
      size_t end = i + 1;
      while (end < code.size() && (absl::ascii_isalnum(code[end]) || code[end] == '_')) ++end;
      if (!std::exchange(dotted, false)) path.clear();
      path.push_back(code.substr(i, end - i));
      const bool spelled = path.back() == "getattr" && !PlainGetattr(code.substr(end));
      if (spelled || Refused(path)) return fmt::format("{}", fmt::join(path, "."));
      i = end;
      continue;
    }
    if (c == '.') {
      dotted = true;
    } else if (!within) {
      path.clear();
      dotted = false;
    }
    ++i;
  }
  if (NamesNamespace(path, '\n')) return fmt::format("{}", fmt::join(path, "."));
  return std::nullopt;
}

absl::StatusOr<torch::jit::Module> LoadTorchScript(const std::string& archive, const std::string& device,
                                                   const std::string& field, const std::string& uri) {
  const auto unreadable = [&](const std::string& said) {
    return FieldError(field, "TORCHSCRIPT_FILE",
                      fmt::format("{}: expected a TorchScript archive, found {}", uri, WhyUnreadable(archive, said)));
  };
  if (!IsZip(archive)) return unreadable("");
  try {
    std::istringstream stream(archive);
    caffe2::serialize::PyTorchStreamReader reader(&stream);
    if (const std::optional<std::string> refused = RefusedRecord(&reader)) {
      return FieldError(field, "TORCHSCRIPT_REFUSED",
                        fmt::format("{}: expected operators on tensors alone, found {}", uri, *refused));
    }
    stream.clear();
    stream.seekg(0);
    torch::jit::Module module = torch::jit::load(stream, at::Device(device));
    module.eval();
    return module;
  } catch (const std::exception& error) {
    return unreadable(FirstLine(error.what()));
  }
}

}  // namespace atl::model
