// For tests: serves a version that answers inside Start.
#pragma once

#include <memory>
#include <utility>

#include "common/base/clock.h"
#include "fmt/format.h"
#include "router/engine/engine.h"
#include "router/engine/testing/inline_lane.h"

namespace atl::router {

// Serves the backend's version, on its own lane.
inline void ServeInline(Engine* engine, std::shared_ptr<ModelBackend> backend, Clock* clock) {
  const SamplerInfo info = backend->info();
  engine->AddLane(std::make_shared<InlineLane>(LaneInfo{.name = fmt::format("{} {}", info.model, info.version)},
                                               std::move(backend), /*digest=*/"", clock));
  engine->Serve(std::make_shared<ServedVersion>(ServedVersion{.info = info}));
}

}  // namespace atl::router
