// Step-level batching: which images step in this tick and which evaluations share a batch. Pure.
//
// At every tick of the sampling loop each image in flight picks its own experts, so a batch falls apart and is put
// together again across requests: all evaluations of one (model version, expert, shape, guidance mode) form batches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "router/policy/step_scheduler.h"

namespace atl::router {

struct FlightImage {
  int64_t request = 0;    // requests are numbered in order of arrival
  int64_t last_tick = 0;  // tick of its last step; that of joining, before its first
};

// Indices into `images` that step now, at most `limit`. Below the limit everyone steps. Above it requests take turns,
// image by image, so that a large one never keeps a small one waiting; among equals the image that has waited longest
// goes first, then the older request. Nobody starves: a request without a turn only gets closer to the front.
std::vector<size_t> PickImages(std::span<const FlightImage> images, size_t limit);

struct Batch {
  GroupKey key;
  std::vector<size_t> evaluations;  // indices into the evaluations that were passed
  size_t rows() const { return evaluations.size() * (key.guided ? 2 : 1); }
};

// One key per evaluation, in the order of the images that step. Batches have at most `max_rows` rows (at least one
// evaluation) and differ by at most one evaluation within a group; groups come in the order of their first evaluation,
// so that what waited longest runs first.
std::vector<Batch> GroupIntoBatches(std::span<const GroupKey> evaluations, size_t max_rows);

}  // namespace atl::router
