// Measures how co-batching changes images: the same images alone, in requests of several, and among requests that come
// at random.
#pragma once

#include <cstdint>
#include <string>

#include "router/engine/engine.h"

namespace atl::router {

struct CompanyLoad {
  uint64_t images = 200;  // in each of the four kinds of company
  int32_t classes = 0;    // they take turns, the null class among them
  RoutingRule routing;
  int32_t steps = 10;
  double guidance = 1;
};

// An image is compared once in requests of 2, of 5 and of 16, and once in a request of 1 among others.
struct Company {
  int64_t failed = 0;  // requests; nothing else holds then
  int64_t compared = 0;
  int64_t within_a_level = 0;  // nowhere farther than one of 255 grey levels, of which there are 127.5 to 1
  double farthest_within = 0;  // of these, in levels
  int64_t requests = 0;
  int64_t flips = 0;             // requests that other experts drew than their images alone
  int64_t unforeseen = 0;        // images and requests that came out otherwise without a close call alone
  int64_t image_steps = 0;       // alone
  int64_t close_calls = 0;       // of these
  int64_t with_close_calls = 0;  // images alone that had any
};

// Blocks. The engine must be started, serve one model, and have no other user.
Company MeasureCompany(Engine* engine, const CompanyLoad& load);

std::string Describe(const Company& company);

}  // namespace atl::router
