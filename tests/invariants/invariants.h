// The invariants of a coordinator's store and its blob store, whatever happened to the processes. They are checked from
// the files alone, after faults of any kind, while the coordinator runs or after it was killed.
//
//   store         the file opens; every page, key and reference is whole
//   epoch         the newest epoch in the blob store is this store's
//   jobs          states of a job and of its tasks go together
//   attempts      numbers only grow, one attempt is active at most, one finished each finished task
//   steps         every step of a task is committed once, in the order of attempts, and the task knows the last one;
//                 once more only above a step that the task went back to
//   results       a finished task's outputs are those that it must have; a training's is its last committed checkpoint
//   versions      every job that has succeeded has one version, and every version such a job, where it was not
//                 deleted; generations have no gap
//   files         every committed checkpoint, output and published file is there and has its hash
//   cursor        a checkpoint's data cursor is at its own step: no sample was read twice, or skipped but by a rollback
//   acknowledged  no acknowledged write is missing
//   weights       final weights are bit for bit those of the run without faults
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/storage/blob_store.h"
#include "tests/invariants/story.h"

namespace atl::testing_invariants {

struct Violation {
  std::string rule;
  std::string what;  // one line that names the job, task or file
};

// Returns "rule: what", one per line.
std::string ToString(const std::vector<Violation>& violations);

// The answers that callers received. A job that its user deleted does not belong here.
struct Acknowledged {
  struct Commit {
    std::string task_id;
    int64_t attempt = 0;
    int64_t step = 0;
    auto operator<=>(const Commit&) const = default;
  };
  std::set<std::string> jobs;              // submitted
  std::map<std::string, int64_t> granted;  // by task: the newest attempt of which an island was notified
  std::set<Commit> commits;
  std::map<std::string, std::string> completed;  // by task: SHA-256 of its first output; empty where unknown
};

// Adds the answered grants and commits in a log of an island's leader.
void AddFromLog(std::string_view log, Acknowledged* acknowledged);

// Checks the rules that need only rows.
std::vector<Violation> CheckRows(const Story& story);
// Checks epoch, files and cursor. Reads every file that a row names.
std::vector<Violation> CheckFiles(const Story& story, storage::BlobStore* blobs);
std::vector<Violation> CheckAcknowledged(const Story& story, const Acknowledged& acknowledged);
// `references`: local paths of the final manifests of a run without faults, beside their files. Each is the reference
// for the task of its kind and index in every job that has succeeded; a run without such a task is a violation.
std::vector<Violation> CheckWeights(const Story& story, storage::BlobStore* blobs,
                                    const std::vector<std::string>& references);

struct Checked {
  std::string store;                           // path of the file
  std::string blobs;                           // root URI; empty: files are skipped
  const Acknowledged* acknowledged = nullptr;  // null: skipped
  std::vector<std::string> references;         // empty: skipped
};

// Checks all rules. Blocks on the disks.
std::vector<Violation> CheckInvariants(const Checked& checked);

}  // namespace atl::testing_invariants
