// Bodies of the REST facade, in the shape of OpenAI's images endpoint, <-> sampling messages. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "atoll/sample/v1/sample_service.pb.h"
#include "router/engine/flight.h"
#include "router/policy/request.h"

namespace atl::router {

// One POST /v1/images/generations, before the model is known.
struct ImagesRequest {
  atlpb::sample::v1::SampleRequest sample;  // all but classes and seeds
  std::string prompt;                       // a class: its name, its number, or "none"
  int32_t images = 1;
  std::optional<uint64_t> seed;  // of the first image
  std::string size;              // "<width>x<height>", or empty: the model's
  absl::Duration timeout = absl::InfiniteDuration();
  bool stream = false;
  int32_t partial_images = 0;  // previews of each image, of a stream
};

// INVALID_ARGUMENT with the field for what is no JSON object (BODY_MALFORMED), a field of a wrong type or out of range,
// one that is not known, and one whose value this server has not: nothing that would change the images is ignored.
// `max_images` is checked before anything is allocated.
absl::StatusOr<ImagesRequest> ParseImagesRequest(std::string_view body, int32_t max_images);

// With the classes and seeds of a model: one class for all images, seeds from `fresh_seed` on where the request names
// none. INVALID_ARGUMENT for an unknown class (UNKNOWN_CLASS) or a size that is not the model's (SIZE_NOT_AVAILABLE).
absl::StatusOr<atlpb::sample::v1::SampleRequest> CompleteRequest(const ImagesRequest& request, const SamplerInfo& info,
                                                                 uint64_t fresh_seed);

// The answer with every image in it, in the order of their indexes.
std::string ImagesBody(absl::Time created, const SamplerInfo& info, ImageFormat format,
                       std::vector<SampledImage> images, const SampleReport& report);

// Server-sent events of a stream, as OpenAI names them: a preview, number `partial` of its image; a finished image;
// what the request was, after the last image; the error that ends it.
std::string PartialImageEvent(absl::Time created, const SamplerInfo& info, ImageFormat format, int32_t partial,
                              const SampledImage& preview);
std::string CompletedImageEvent(absl::Time created, const SamplerInfo& info, ImageFormat format,
                                const SampledImage& image);
std::string DoneEvent(const SamplerInfo& info, const SampleReport& report);
std::string ErrorEvent(const absl::Status& status);

// GET /v1/models, and one of its entries alone.
std::string ModelsBody(std::span<const SamplerInfo> models);
std::string ModelBody(const SamplerInfo& model);

// {"error": {message, type, param, code}}; code is the reason.
std::string ErrorBody(const absl::Status& status);
// 400, 404, 429, 499 (the caller cancelled), 500, 501, 503 or 504. FAILED_PRECONDITION is 503: no model is known yet.
int HttpCode(absl::StatusCode code);

}  // namespace atl::router
