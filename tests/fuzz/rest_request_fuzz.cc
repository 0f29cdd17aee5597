// Bodies of POST /v1/images/generations, and what they become on their way to the engine.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "nlohmann/json.hpp"
#include "router/rest/rest_wire.h"
#include "router/service/sample_wire.h"

namespace {

void RequireShortJson(const absl::Status& status) {
  const std::string body = atl::router::ErrorBody(status);
  // The answer to a large body is small, and it parses.
  if (body.size() > 4096 || nlohmann::json::parse(body, nullptr, false).is_discarded()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace atl::router;
  constexpr int32_t kMaxImages = 16;
  const SamplerInfo info{.model = "pets",
                         .version = "v3",
                         .experts = 4,
                         .classes = 3,
                         .channels = 1,
                         .height = 4,
                         .width = 4,
                         .class_names = {"cat", "dog", "2"}};
  const SamplerLimits limits{.max_steps = 50, .max_images = kMaxImages};
  const auto parsed = ParseImagesRequest({reinterpret_cast<const char*>(data), size}, kMaxImages);
  if (!parsed.ok()) return RequireShortJson(parsed.status()), 0;
  if (parsed->images < 1 || parsed->images > kMaxImages) std::abort();
  const auto complete = CompleteRequest(*parsed, info, /*fresh_seed=*/1);
  if (!complete.ok()) return RequireShortJson(complete.status()), 0;
  if (complete->classes_size() != parsed->images) std::abort();
  const auto request = FromProto(*complete, limits);
  if (!request.ok()) return RequireShortJson(request.status()), 0;
  const auto order = ResolveRequest(*request, info, limits);
  if (!order.ok()) return RequireShortJson(order.status()), 0;
  if (order->images.size() > size_t{kMaxImages} || order->steps < 1 || order->steps > limits.max_steps) std::abort();
  return 0;
}
