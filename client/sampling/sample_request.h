// What `sample`'s flags ask of a router, and its answers in their words. Pure.
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
  std::string mode;  // empty: the router decides
  int top_k = 0;
  double threshold = 0;
  double nucleus_p = 0;
  double temperature = 0;
  std::optional<int> expert;
  std::string solver;  // empty: the version's default
  int steps = 0;
  std::vector<double> times;
  std::optional<double> guidance;
  double guidance_from = 0;
  std::optional<double> guidance_to;
  std::string negative_class;     // empty: none
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

struct Labels {
  std::vector<int32_t> images;  // by image; -1: none
  std::optional<int32_t> negative;
};

// Labels of --class "3", "0-4,7", "cat", "all" or "none" (-1), each `count` times in a row, and of --negative-class.
// A name goes before a number. INVALID_ARGUMENT, reason UNKNOWN_CLASS, names the flag, the class and what there is;
// reason TOO_MANY_IMAGES: more than ten million. INTERNAL, reason CLASSES_OUT_OF_RANGE: of classes, by the router's
// word.
absl::StatusOr<Labels> FindLabels(const SampleFlags& flags, int count,
                                  const atlpb::sample::v1::GetSamplerInfoResponse& info);

// What --out and --preview name is known before anything is drawn: FILE.png, or (--out alone) a folder; beside --raw
// a folder alone.
absl::Status CheckOut(const SampleFlags& flags);

// Requests of at most `most` images; image i of all has seed `flags.seed` + i, however they are split. `init_images`:
// none, one for all, or one per image; INVALID_ARGUMENT, reason INIT_COUNT, for another number.
absl::StatusOr<std::vector<atlpb::sample::v1::SampleRequest>> MakeRequests(
    const SampleFlags& flags, const Labels& labels, int32_t most, const std::vector<std::string>& init_images = {});

// The request without its images (classes, seeds, init_images) and with the defaults that `info` has for what it leaves
// open, where that is the version asked for.
atlpb::sample::v1::SampleRequest SettingsOf(const atlpb::sample::v1::SampleRequest& request,
                                            const atlpb::sample::v1::GetSamplerInfoResponse& info);

// A router's refusal of a request, with flags in place of the fields that it names.
absl::Status InFlags(const absl::Status& status);

}  // namespace atl::client
