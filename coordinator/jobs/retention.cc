#include "coordinator/jobs/retention.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "fmt/format.h"

namespace atl::jobs {
namespace {

// Parses the number of a store epoch or an attempt. It is bounded because later numbers continue from the found one.
bool ParseNumber(std::string_view text, int64_t* number) {
  constexpr int64_t kMost = int64_t{1} << 53;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() && *number > 0 && *number <= kMost;
}

// "<attempt's folder>/evidence/<file>".
bool IsEvidence(std::string_view uri) {
  constexpr std::string_view kFolder = "/evidence";
  return uri.substr(0, uri.rfind('/')).ends_with(kFolder);
}

// "<checkpoint's folder>/manifest.json".
bool IsManifest(std::string_view uri) {
  return uri.ends_with("/manifest.json");
}

// Whether a folder of `folders` is a prefix of `uri`.
bool InsideAny(const std::set<std::string>& folders, std::string_view uri) {
  for (size_t slash = uri.find('/'); slash != std::string_view::npos; slash = uri.find('/', slash + 1)) {
    if (folders.contains(std::string(uri.substr(0, slash + 1)))) return true;
  }
  return false;
}

}  // namespace

std::vector<RetainedCheckpoint> SupersededCheckpoints(std::vector<RetainedCheckpoint> committed, int32_t keep) {
  std::sort(committed.begin(), committed.end(),
            [](const auto& a, const auto& b) { return a.step != b.step ? a.step > b.step : a.attempt > b.attempt; });
  std::vector<RetainedCheckpoint> superseded;
  const size_t newest = static_cast<size_t>(std::max(1, keep));
  for (size_t i = newest; i < committed.size(); ++i) {
    if (!committed[i].milestone) superseded.push_back(committed[i]);
  }
  std::reverse(superseded.begin(), superseded.end());
  return superseded;
}

std::vector<Collection> CollectableFiles(const std::vector<StoredFile>& files,
                                         const std::set<std::string>& needed_files,
                                         const std::set<std::string>& needed_folders, absl::Time now,
                                         absl::Duration min_age) {
  // A manifest is written last, and so is the last to be old enough.
  std::set<std::string> waiting;
  for (const StoredFile& file : files) {
    if (IsManifest(file.uri) && now - file.modified < min_age) waiting.insert(FolderOf(file.uri));
  }
  std::vector<Collection> collectable;
  for (const StoredFile& file : files) {
    if (!file.attempt.known || now - file.modified < min_age || waiting.contains(FolderOf(file.uri))) continue;
    if (file.attempt.job_deleted) {
      collectable.push_back({file.uri, "its job was deleted"});
      continue;
    }
    if (IsEvidence(file.uri)) continue;
    if (needed_files.contains(file.uri) || InsideAny(needed_folders, file.uri)) continue;
    if (file.attempt.task_over) {
      collectable.push_back({file.uri, "no row names it and its task is over"});
    } else if (file.attempt.superseded) {
      collectable.push_back({file.uri, "no row names it and its attempt is superseded"});
    }
  }
  std::stable_partition(collectable.begin(), collectable.end(),
                        [](const Collection& file) { return IsManifest(file.uri); });
  return collectable;
}

bool ParseAttemptFolder(std::string_view jobs_root, std::string_view uri, AttemptFolder* folder) {
  if (uri.substr(0, jobs_root.size()) != jobs_root) return false;
  uri.remove_prefix(jobs_root.size());
  const size_t job_end = uri.find('/');
  if (job_end == std::string_view::npos) return false;
  const size_t task_end = uri.find('/', job_end + 1);
  if (task_end == std::string_view::npos) return false;
  const size_t attempt_end = uri.find('/', task_end + 1);
  if (attempt_end == std::string_view::npos) return false;
  const std::string_view token = uri.substr(task_end + 1, attempt_end - task_end - 1);
  const size_t dash = token.find('-');
  if (dash == std::string_view::npos) return false;
  folder->task_id = uri.substr(0, task_end);
  return ParseNumber(token.substr(0, dash), &folder->store_epoch) &&
         ParseNumber(token.substr(dash + 1), &folder->attempt);
}

std::string FolderOf(std::string_view uri) {
  return std::string(uri.substr(0, uri.rfind('/') + 1));
}

}  // namespace atl::jobs
