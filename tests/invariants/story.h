// The rows of a coordinator's store, read as one snapshot.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/store/store.h"

namespace atl::testing_invariants {

struct Story {
  std::string store_id;
  int64_t epoch = 0;
  int64_t restored_epoch = 0;
  std::vector<jobs::JobRecord> jobs;
  std::map<std::string, std::vector<store::AttemptRow>, std::less<>> attempts;        // by task, by number
  std::map<std::string, std::vector<store::CheckpointRow>, std::less<>> checkpoints;  // by task, by step
  std::vector<store::Model> models;
  std::map<std::string, std::vector<store::ServingRow>, std::less<>> serving_history;  // by model, oldest first
};

// Reads every row of the store. Errors are the store's own.
absl::StatusOr<Story> ReadStory(store::Store& store);

// Reads a store's file through a copy: the coordinator may run, or have been killed. DATA_LOSS when the file is
// damaged.
absl::StatusOr<Story> ReadStoryOf(const std::string& store_path);

}  // namespace atl::testing_invariants
