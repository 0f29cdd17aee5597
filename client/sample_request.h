// What `sample`'s flags ask of a router. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "atoll/sample/v1/sample_service.pb.h"

namespace atl::client {

struct SampleFlags {
  std::string model;
  std::string version;
  std::string classes = "all";
  int count = 1;
  std::string mode;  // empty: by the other flags, else top1
  int top_k = 0;
  double threshold = 0;
  int expert = -1;
  std::string solver = "euler";
  int steps = 0;
  double guidance = -1;
  uint64_t seed = 0;
  bool raw = false;
  double wait_seconds = 0;
  std::vector<std::string> out;
  bool report = false;
};

// Labels of "3", "0-4,7", "all" (0 .. classes - 1) or "none" (-1), each `count` times in a row. INVALID_ARGUMENT,
// reason UNKNOWN_CLASS, names the class and what there is.
absl::StatusOr<std::vector<int32_t>> ExpandClasses(const std::string& text, int count, int32_t classes);

// What --out names is known before anything is drawn: FILE.png, or a folder; a folder only beside --raw.
absl::Status CheckOut(const SampleFlags& flags);

// Requests of at most `most` images; image i of all has seed `flags.seed` + i, however they are split.
absl::StatusOr<std::vector<atlpb::sample::v1::SampleRequest>> MakeRequests(const SampleFlags& flags,
                                                                           const std::vector<int32_t>& classes,
                                                                           int32_t most);

}  // namespace atl::client
