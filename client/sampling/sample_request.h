// Converts the flags of `sample` to requests, and a router's errors to messages that name flags. Pure.
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

// Returns the labels of --class "3", "0-4,7", "cat", "all" or "none" (-1), each repeated `count` times in a row, and of
// --negative-class. A class name takes precedence over a number. INVALID_ARGUMENT (UNKNOWN_CLASS) names the flag, the
// class and the known classes; TOO_MANY_IMAGES: more than ten million. INTERNAL (CLASSES_OUT_OF_RANGE): the router
// reports an invalid number of classes.
absl::StatusOr<Labels> FindLabels(const SampleFlags& flags, int count,
                                  const atlpb::sample::v1::GetSamplerInfoResponse& info);

// Validates the paths of --out and --preview before anything is sampled: FILE.png, or (--out only) a folder; with
// --raw, only a folder.
absl::Status CheckOut(const SampleFlags& flags);

// Splits the images into requests of at most `most`. Image i of all has seed `flags.seed` + i, however they are split.
// `init_images`: none, one for all, or one per image; INVALID_ARGUMENT (INIT_COUNT) for another number.
absl::StatusOr<std::vector<atlpb::sample::v1::SampleRequest>> MakeRequests(
    const SampleFlags& flags, const Labels& labels, int32_t most, const std::vector<std::string>& init_images = {});

// Returns the request without its images (classes, seeds, init_images). If `info` describes the requested version, its
// defaults fill the fields that the request leaves unset.
atlpb::sample::v1::SampleRequest SettingsOf(const atlpb::sample::v1::SampleRequest& request,
                                            const atlpb::sample::v1::GetSamplerInfoResponse& info);

// Converts a router's rejection of a request: names flags instead of fields.
absl::Status InFlags(const absl::Status& status);

}  // namespace atl::client
