// Which checkpoints and files may go. Pure: lists in, decisions with reasons out; coordinator/service deletes.
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

// The committed checkpoints of one task that are neither among the newest `keep` (at least 1: a run resumes from it),
// nor a milestone. In step order. No row may refer to one that is returned.
std::vector<RetainedCheckpoint> SupersededCheckpoints(std::vector<RetainedCheckpoint> committed, int32_t keep);

// What the coordinator knows of the attempt folder "jobs/<task>/<epoch>-<attempt>/" that a file lies in.
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

// Files without a row that may be deleted: no artifact is the file and no checkpoint row's folder holds it, the
// attempt is superseded or its task over, and it is at least `min_age` old. Everything of a deleted job goes once old
// enough, whatever rows there were.
// Evidence of training that diverged stays as long as its job. Manifests come first, and the files beside one that is
// not old enough wait for it: a manifest without its files would look like a damaged checkpoint.
// `needed_files` are the URIs of artifacts, `needed_folders` those of checkpoint rows (ending in '/').
std::vector<Collection> CollectableFiles(const std::vector<StoredFile>& files,
                                         const std::set<std::string>& needed_files,
                                         const std::set<std::string>& needed_folders, absl::Time now,
                                         absl::Duration min_age);

// "<store_epoch>-<attempt>" and task id out of "<root>/jobs/<job>/<task>/<epoch>-<attempt>/<rest>". False for
// anything else.
struct AttemptFolder {
  std::string task_id;
  int64_t store_epoch = 0;
  int64_t attempt = 0;
};
bool ParseAttemptFolder(std::string_view jobs_root, std::string_view uri, AttemptFolder* folder);

// The URI of the folder that holds `uri`, with a trailing '/'.
std::string FolderOf(std::string_view uri);

}  // namespace atl::jobs
