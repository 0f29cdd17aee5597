// What `sample`'s flags ask of a router. Pure.
#pragma once

#include <cstdint>
#include <optional>
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
  std::string mode;  // empty: by the other flags, else the version's default
  int top_k = 0;
  double threshold = 0;
  double nucleus_p = 0;
  double temperature = 0;
  int expert = -1;
  std::string solver;  // empty: the version's default
  int steps = 0;
  std::vector<double> times;
  double guidance = -1;
  double guidance_from = 0;
  std::optional<double> guidance_to;
  int negative_class = -1;
  std::vector<std::string> init;  // files, or one folder of samples
  std::optional<double> strength;
  bool reproducible = false;
  bool allow_expert_loss = false;
  std::optional<int> priority;
  uint64_t seed = 0;
  bool raw = false;
  std::string preview;  // a picture that is rewritten while images are in the making
  int preview_every = 5;
  double wait_seconds = 0;
  std::vector<std::string> out;
  bool report = false;
};

// Labels of "3", "0-4,7", "all" (0 .. classes - 1) or "none" (-1), each `count` times in a row. INVALID_ARGUMENT,
// reason UNKNOWN_CLASS, names the class and what there is.
absl::StatusOr<std::vector<int32_t>> ExpandClasses(const std::string& text, int count, int32_t classes);

// What --out and --preview name is known before anything is drawn: FILE.png, or (--out alone) a folder; beside --raw
// a folder alone.
absl::Status CheckOut(const SampleFlags& flags);

// Requests of at most `most` images; image i of all has seed `flags.seed` + i, however they are split. `init_images`:
// none, one for all, or one per class; INVALID_ARGUMENT, reason INIT_COUNT, for another number.
absl::StatusOr<std::vector<atlpb::sample::v1::SampleRequest>> MakeRequests(
    const SampleFlags& flags, const std::vector<int32_t>& classes, int32_t most,
    const std::vector<std::string>& init_images = {});

}  // namespace atl::client
