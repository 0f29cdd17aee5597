// Decides which checkpoints and files to delete. Pure: lists in, decisions with reasons out; coordinator/blobs deletes.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace atl::jobs {

struct RetainedCheckpoint {
  int64_t attempt = 0;
  int64_t step = 0;
  std::string manifest_uri;
  bool milestone = false;
};

// Returns, in step order, the committed checkpoints of one task that are neither among the newest `keep` (at least 1: a
// run resumes from it) nor milestones. No row may refer to a returned checkpoint.
std::vector<RetainedCheckpoint> SupersededCheckpoints(std::vector<RetainedCheckpoint> committed, int32_t keep);

// The coordinator's facts about the attempt folder "jobs/<task>/<epoch>-<attempt>/" of a file.
struct AttemptFacts {
  bool known = false;        // the store has the job; a folder of a job that it never had is left alone
  bool job_deleted = false;  // the user deleted the job
  bool task_over = false;
  bool superseded = false;  // an attempt after this one was granted
};

struct StoredFile {
  std::string uri;
  absl::Time modified;
  AttemptFacts attempt;
};

struct Collection {
  std::string uri;
  std::string reason;
};

// Returns files without a row that may be deleted. Such a file is no artifact and in no checkpoint row's folder, its
// attempt is superseded or its task over, and it is at least `min_age` old. All files of a deleted job go once old
// enough, whatever rows exist.
// Evidence of divergence stays as long as its job. Manifests come first, and the files beside a manifest that is too
// young wait for it: a manifest without its files would look like a damaged checkpoint.
// `needed_files` are the URIs of artifacts, `needed_folders` those of checkpoint rows (ending in '/').
std::vector<Collection> CollectableFiles(const std::vector<StoredFile>& files,
                                         const std::set<std::string>& needed_files,
                                         const std::set<std::string>& needed_folders, absl::Time now,
                                         absl::Duration min_age);

// The task id, epoch and attempt in "<root>/jobs/<job>/<task>/<epoch>-<attempt>/<rest>". ParseAttemptFolder returns
// false for any other text.
struct AttemptFolder {
  std::string task_id;
  int64_t store_epoch = 0;
  int64_t attempt = 0;
};
bool ParseAttemptFolder(std::string_view jobs_root, std::string_view uri, AttemptFolder* folder);

// Returns the URI of the folder that holds `uri`, with a trailing '/'.
std::string FolderOf(std::string_view uri);

}  // namespace atl::jobs
