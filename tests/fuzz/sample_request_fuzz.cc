// SampleRequests as bytes of a stranger, from the message to the last image: a whole engine with a small model answers
// each.
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "atoll/sample/v1/sample_service.pb.h"
#include "common/base/fake_clock.h"
#include "router/engine/testing/fake_backend.h"
#include "router/engine/testing/recorded_events.h"
#include "router/engine/testing/serve_inline.h"
#include "router/engine/testing/ticked_engine.h"
#include "router/service/sample_wire.h"
#include "tests/fuzz/short_error.h"

namespace {

using namespace atl::router;

constexpr int32_t kMaxImages = 8;
constexpr int32_t kMaxSteps = 6;

void Require(bool holds) {
  if (!holds) std::abort();
}

// Draws all of it, one tick after the other; a tick makes one step of every image.
void Draw(const SampleRequest& request) {
  atl::FakeClock clock;
  const SamplerInfo info{.model = "pets",
                         .version = "v3",
                         .experts = 3,
                         .classes = 3,
                         .channels = 1,
                         .height = 4,
                         .width = 4,
                         .class_names = {"cat", "dog", "2"}};
  TickedEngine engine({.limits = {.max_steps = kMaxSteps, .max_images = kMaxImages}}, &clock, nullptr);
  ServeInline(&engine, std::make_shared<FakeBackend>(info), &clock);
  const auto events = std::make_shared<RecordedEvents>();
  auto ticket = engine.Submit(request, absl::InfiniteDuration(), events);
  if (!ticket.ok()) return atl::RequireShortError(ticket.status());
  const size_t images = request.classes.size();
  Require(images >= 1 && images <= size_t{kMaxImages});
  for (int tick = 0; tick <= kMaxSteps + 1 && engine.RunTick(); ++tick) {
  }
  Require(events->over());
  if (!events->status().ok()) return atl::RequireShortError(events->status());
  Require(events->images().size() == images);
  for (const SampledImage& image : events->images()) Require(!image.data.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  atlpb::sample::v1::SampleRequest proto;
  if (!proto.ParseFromArray(data, static_cast<int>(size))) return 0;
  const auto request = FromProto(proto, {.max_steps = kMaxSteps, .max_images = kMaxImages});
  if (!request.ok()) return atl::RequireShortError(request.status()), 0;
  Draw(*request);
  return 0;
}
