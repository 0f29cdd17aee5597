// Conversion between bodies of the REST facade, in the form of OpenAI's images endpoint, and sampling messages. Pure.
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

// One POST /v1/images/generations, before its model is known.
struct ImagesRequest {
  atlpb::sample::v1::SampleRequest sample;  // all but classes and seeds
  std::string prompt;                       // a class: its name, its number, or "none"
  int32_t images = 1;
  std::optional<uint64_t> seed;  // of the first image
  std::string size;              // "<width>x<height>", or empty: the model's
  absl::Duration timeout = absl::InfiniteDuration();
  bool stream = false;
  int32_t partial_images = 0;  // previews of each image in a stream
};

// INVALID_ARGUMENT with the field for a body that is no JSON object (BODY_MALFORMED), a field of a wrong type or out of
// range, an unknown field, and an unsupported value: no field that would change the images is ignored. `max_images` is
// checked before anything is allocated.
absl::StatusOr<ImagesRequest> ParseImagesRequest(std::string_view body, int32_t max_images);

// Adds the classes and seeds: one class of the model for all images, and seeds from `fresh_seed` on if the request
// names none. INVALID_ARGUMENT for an unknown class (UNKNOWN_CLASS) or a size that is not the model's
// (SIZE_NOT_AVAILABLE).
absl::StatusOr<atlpb::sample::v1::SampleRequest> CompleteRequest(const ImagesRequest& request, const SamplerInfo& info,
                                                                 uint64_t fresh_seed);

// Returns the answer with all images, in the order of their indexes.
std::string ImagesBody(absl::Time created, const SamplerInfo& info, ImageFormat format,
                       std::vector<SampledImage> images, const SampleReport& report);

// Server-sent events of a stream, with OpenAI's names: preview number `partial` of an image; a finished image; a
// summary of the request after the last image; the error that ends the stream.
std::string PartialImageEvent(absl::Time created, const SamplerInfo& info, ImageFormat format, int32_t partial,
                              const SampledImage& preview);
std::string CompletedImageEvent(absl::Time created, const SamplerInfo& info, ImageFormat format,
                                const SampledImage& image);
std::string DoneEvent(const SamplerInfo& info, const SampleReport& report);
std::string ErrorEvent(const absl::Status& status);

// The answers to GET /v1/models and to a request for one entry.
std::string ModelsBody(std::span<const SamplerInfo> models);
std::string ModelBody(const SamplerInfo& model);

// {"error": {message, type, param, code}}; code is the reason.
std::string ErrorBody(const absl::Status& status);
// 400, 404, 429, 499 (the caller cancelled), 500, 501, 503 or 504. FAILED_PRECONDITION is 503: no model is known yet.
int HttpCode(absl::StatusCode code);

}  // namespace atl::router
