#include "router/policy/step_batching.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace atl::router {

std::vector<size_t> PickImages(std::span<const FlightImage> images, size_t limit) {
  std::vector<size_t> order(images.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (images.size() <= limit) return order;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::tie(images[a].last_tick, images[a].request) < std::tie(images[b].last_tick, images[b].request);
  });
  // The n-th turn of a request comes after everyone's (n - 1)-th.
  std::map<int64_t, int64_t> turns;
  std::vector<int64_t> turn(images.size());
  for (const size_t i : order) turn[i] = turns[images[i].request]++;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return turn[a] < turn[b]; });
  order.resize(limit);
  return order;
}

std::vector<Batch> GroupIntoBatches(std::span<const GroupKey> evaluations, size_t max_rows) {
  std::map<GroupKey, size_t> group_of;
  std::vector<Batch> groups;
  for (size_t i = 0; i < evaluations.size(); ++i) {
    const auto [it, inserted] = group_of.try_emplace(evaluations[i], groups.size());
    if (inserted) groups.push_back({.key = evaluations[i]});
    groups[it->second].evaluations.push_back(i);
  }
  std::vector<Batch> batches;
  for (Batch& group : groups) {
    const size_t limit = std::max<size_t>(1, max_rows / (group.key.guided ? 2 : 1));
    const size_t count = group.evaluations.size();
    const size_t parts = (count + limit - 1) / limit;
    for (size_t part = 0; part < parts; ++part) {
      const auto begin = group.evaluations.begin();
      batches.push_back({.key = group.key,
                         .evaluations = {begin + static_cast<ptrdiff_t>(count * part / parts),
                                         begin + static_cast<ptrdiff_t>(count * (part + 1) / parts)}});
    }
  }
  return batches;
}

}  // namespace atl::router
