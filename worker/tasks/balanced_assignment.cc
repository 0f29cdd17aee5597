#include "worker/tasks/balanced_assignment.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <queue>
#include <utility>

namespace atl::tasks {
namespace {

constexpr int kMaxImprovementPasses = 20;

// A point's two cheapest open clusters. `second` is -1 when only one is open.
struct Choice {
  int32_t best = -1;
  int32_t second = -1;
  double regret = std::numeric_limits<double>::infinity();
};

Choice Choose(std::span<const double> costs, const std::vector<bool>& open) {
  Choice choice;
  for (int32_t c = 0; c < static_cast<int32_t>(open.size()); ++c) {
    if (!open[c]) continue;
    if (choice.best < 0 || costs[c] < costs[choice.best]) {
      choice.second = choice.best;
      choice.best = c;
    } else if (choice.second < 0 || costs[c] < costs[choice.second]) {
      choice.second = c;
    }
  }
  if (choice.second >= 0) choice.regret = costs[choice.second] - costs[choice.best];
  return choice;
}

struct Entry {
  double regret;
  size_t point;
  uint32_t version;  // an entry of an older version is stale
  bool operator<(const Entry& other) const {
    return regret != other.regret ? regret < other.regret : point > other.point;
  }
};

}  // namespace

std::vector<int32_t> AssignBalanced(std::span<const double> costs, int32_t clusters, std::span<const double> weights,
                                    double capacity) {
  const size_t points = weights.size();
  const auto costs_of = [&](size_t point) { return costs.subspan(point * clusters, clusters); };
  std::vector<bool> open(clusters, true);
  std::vector<double> load(clusters, 0);
  std::vector<int32_t> assignment(points, -1);
  std::vector<uint32_t> version(points, 0);
  std::vector<Choice> choices(points);
  std::priority_queue<Entry> queue;
  for (size_t point = 0; point < points; ++point) {
    choices[point] = Choose(costs_of(point), open);
    queue.push({choices[point].regret, point, 0});
  }
  int32_t open_count = clusters;
  while (!queue.empty()) {
    const Entry entry = queue.top();
    queue.pop();
    if (assignment[entry.point] >= 0 || entry.version != version[entry.point]) continue;
    const int32_t cluster = choices[entry.point].best;
    assignment[entry.point] = cluster;
    load[cluster] += weights[entry.point];
    // The last open cluster stays open: rounding of the capacity must not leave a point without a cluster.
    if (load[cluster] < capacity || open_count == 1) continue;
    open[cluster] = false;
    --open_count;
    for (size_t point = 0; point < points; ++point) {
      Choice& choice = choices[point];
      if (assignment[point] >= 0 || (choice.best != cluster && choice.second != cluster)) continue;
      choice = Choose(costs_of(point), open);
      queue.push({choice.regret, point, ++version[point]});
    }
  }
  return assignment;
}

void ImproveAssignment(std::span<const double> costs, int32_t clusters, std::span<const double> weights,
                       double capacity, std::vector<int32_t>* assignment) {
  const size_t points = weights.size();
  std::vector<double> load(clusters, 0);
  for (size_t i = 0; i < points; ++i) load[(*assignment)[i]] += weights[i];
  const auto cost = [&](size_t point, int32_t cluster) { return costs[point * clusters + cluster]; };
  const auto allowed = [&](int32_t cluster, double change) {
    return change <= 0 || load[cluster] + change <= capacity;
  };
  bool improved = true;
  for (int pass = 0; improved && pass < kMaxImprovementPasses; ++pass) {
    improved = false;
    for (size_t i = 0; i < points; ++i) {
      for (int32_t c = 0; c < clusters; ++c) {
        int32_t& own = (*assignment)[i];
        if (c == own || cost(i, c) >= cost(i, own) || !allowed(c, weights[i])) continue;
        load[own] -= weights[i];
        load[c] += weights[i];
        own = c;
        improved = true;
      }
      for (size_t j = i + 1; j < points; ++j) {
        int32_t& a = (*assignment)[i];
        int32_t& b = (*assignment)[j];
        const double change = weights[j] - weights[i];  // of a's load
        if (a == b || cost(i, b) + cost(j, a) >= cost(i, a) + cost(j, b)) continue;
        if (!allowed(a, change) || !allowed(b, -change)) continue;
        load[a] += change;
        load[b] -= change;
        std::swap(a, b);
        improved = true;
      }
    }
  }
}

}  // namespace atl::tasks
