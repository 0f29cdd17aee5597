#include "router/engine/stepper.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "common/base/errors.h"
#include "fmt/format.h"
#include "router/policy/step_batching.h"

namespace atl::router {
namespace {

// A point at which velocities are wanted, by item.
struct Point {
  const std::vector<float>* x = nullptr;
  float t = 0;
};

struct Evaluation {
  size_t item = 0;
  ExpertWeight picked;
};

// The ensemble's answer for one item.
struct Velocity {
  std::vector<float> guided;
  std::vector<float> own;  // without guidance; of self-conditioned models alone
};

class Tick {
 public:
  Tick(std::span<const StepItem> items, size_t max_rows) : items_(items), max_rows_(max_rows) {}

  StepStats Run();

 private:
  const SolverStep& StepOf(const StepItem& item) const { return item.request->grid[item.image->steps_done]; }
  const SamplerInfo& InfoOf(size_t item) const { return items_[item].request->model->info(); }
  bool Failed(size_t item) const { return !items_[item].request->failure.ok(); }
  int64_t ClassRow(size_t item) const;
  void AppendRow(size_t item, const Point& point, int64_t class_row, Rows* rows) const;

  void Route();
  void RouteModel(const std::vector<size_t>& items);
  void TakePosterior(size_t item, std::span<const float> row);
  // Weighted velocity by item; empty for items without an evaluation.
  std::vector<Velocity> Evaluate(const std::vector<Evaluation>& evaluations, const std::vector<Point>& points);
  VelocityBatch Gather(const Batch& batch, const std::vector<Evaluation>& evaluations,
                       const std::vector<Point>& points) const;
  void Scatter(const Batch& batch, const VelocityBatch& result, const std::vector<Evaluation>& evaluations,
               std::vector<Velocity>* velocities);
  void Advance();

  const std::span<const StepItem> items_;
  const size_t max_rows_;
  std::vector<Evaluation> evaluations_;
  StepStats stats_;
};

int64_t Tick::ClassRow(size_t item) const {
  const int32_t label = items_[item].image->order.class_label;
  return label == kNoClass ? InfoOf(item).classes : label;
}

void Tick::AppendRow(size_t item, const Point& point, int64_t class_row, Rows* rows) const {
  rows->x.insert(rows->x.end(), point.x->begin(), point.x->end());
  rows->t.push_back(point.t);
  rows->classes.push_back(class_row);
  ++rows->count;
}

void Tick::TakePosterior(size_t item, std::span<const float> row) {
  ActiveRequest& request = *items_[item].request;
  double total = 0;
  for (const float p : row) total += p;
  if (!std::isfinite(total) || !(total > 0)) {
    request.failure = MakeError(
        absl::StatusCode::kInternal, "NON_FINITE_OUTPUT",
        fmt::format("router network of model '{}' version '{}': expected probabilities, found a row that adds up to {}",
                    InfoOf(item).model, InfoOf(item).version, total));
    return;
  }
  const ExpertChoice choice = ChooseExperts(request.order.routing, row);
  request.routing.Count(choice);
  ++request.routing.routed_image_steps;
  request.routing.entropy_sum += Entropy(row);
  for (const ExpertWeight& picked : choice.experts) evaluations_.push_back({item, picked});
}

void Tick::RouteModel(const std::vector<size_t>& items) {
  const size_t parts = (items.size() + max_rows_ - 1) / max_rows_;
  std::vector<PosteriorBatch> batches(parts);
  const auto begin_of = [&](size_t part) { return items.size() * part / parts; };
  for (size_t part = 0; part < parts; ++part) {
    for (size_t i = begin_of(part); i < begin_of(part + 1); ++i) {
      const StepItem& item = items_[items[i]];
      AppendRow(items[i], {&item.image->x, static_cast<float>(StepOf(item).from)}, ClassRow(items[i]),
                &batches[part].rows);
    }
  }
  items_[items.front()].request->model->ComputePosteriors(batches);
  for (size_t part = 0; part < parts; ++part) {
    const auto experts = static_cast<size_t>(InfoOf(items.front()).experts);
    for (size_t i = begin_of(part); i < begin_of(part + 1); ++i) {
      if (!batches[part].status.ok()) {
        items_[items[i]].request->failure = WithContext(batches[part].status, "router network");
        continue;
      }
      TakePosterior(items[i], std::span(batches[part].posterior).subspan((i - begin_of(part)) * experts, experts));
    }
  }
}

void Tick::Route() {
  std::map<int64_t, std::vector<size_t>> routed;  // by model
  for (size_t i = 0; i < items_.size(); ++i) {
    ActiveRequest& request = *items_[i].request;
    if (request.order.routing.needs_posterior()) {
      routed[request.model_key].push_back(i);
    } else {
      const ExpertChoice choice = ChooseExperts(request.order.routing, {});
      request.routing.Count(choice);
      for (const ExpertWeight& picked : choice.experts) evaluations_.push_back({i, picked});
    }
  }
  for (const auto& [model, items] : routed) RouteModel(items);
  // In the order of the items, whatever the models: what waited longest runs first.
  std::stable_sort(evaluations_.begin(), evaluations_.end(),
                   [](const Evaluation& a, const Evaluation& b) { return a.item < b.item; });
}

VelocityBatch Tick::Gather(const Batch& batch, const std::vector<Evaluation>& evaluations,
                           const std::vector<Point>& points) const {
  VelocityBatch gathered{.expert = batch.key.expert};
  gathered.rows.x.reserve(batch.rows() * points[evaluations[batch.evaluations.front()].item].x->size());
  for (const size_t i : batch.evaluations) {
    const size_t item = evaluations[i].item;
    AppendRow(item, points[item], ClassRow(item), &gathered.rows);
    if (batch.key.guided) AppendRow(item, points[item], InfoOf(item).classes, &gathered.rows);
    const std::vector<float>& estimate = items_[item].image->estimate;
    for (int branch = 0; branch < (batch.key.guided ? 2 : 1); ++branch) {
      gathered.rows.estimate.insert(gathered.rows.estimate.end(), estimate.begin(), estimate.end());
    }
  }
  return gathered;
}

void Tick::Scatter(const Batch& batch, const VelocityBatch& result, const std::vector<Evaluation>& evaluations,
                   std::vector<Velocity>* velocities) {
  const float* row = result.velocity.data();
  for (const size_t i : batch.evaluations) {
    const auto& [item, picked] = evaluations[i];
    ActiveRequest& request = *items_[item].request;
    if (!result.status.ok()) {
      request.failure = WithContext(result.status, fmt::format("expert {}", picked.expert));
      continue;
    }
    const size_t pixels = InfoOf(item).pixels();
    Velocity& sum = (*velocities)[item];
    sum.guided.resize(pixels);
    const auto weight = static_cast<float>(picked.weight);
    const auto guidance = static_cast<float>(request.order.guidance);
    for (size_t p = 0; p < pixels; ++p) {
      const float velocity = batch.key.guided ? row[pixels + p] + guidance * (row[p] - row[pixels + p]) : row[p];
      sum.guided[p] += weight * velocity;
    }
    if (InfoOf(item).self_conditioning) {
      sum.own.resize(pixels);
      for (size_t p = 0; p < pixels; ++p) sum.own[p] += weight * row[p];
    }
    row += pixels * (batch.key.guided ? 2 : 1);
  }
}

std::vector<Velocity> Tick::Evaluate(const std::vector<Evaluation>& evaluations, const std::vector<Point>& points) {
  std::vector<GroupKey> keys;
  keys.reserve(evaluations.size());
  for (const Evaluation& evaluation : evaluations) {
    const StepItem& item = items_[evaluation.item];
    const SamplerInfo& info = InfoOf(evaluation.item);
    keys.push_back({.model = item.request->model_key,
                    .expert = evaluation.picked.expert,
                    .height = info.height,
                    .width = info.width,
                    .guided = item.request->order.guided(item.image->order)});
  }
  const std::vector<Batch> groups = GroupIntoBatches(keys, max_rows_);
  struct ModelBatches {
    ModelBackend* model = nullptr;
    std::vector<size_t> groups;
    std::vector<VelocityBatch> batches;
  };
  std::map<int64_t, ModelBatches> by_model;
  for (size_t group = 0; group < groups.size(); ++group) {
    const size_t item = evaluations[groups[group].evaluations.front()].item;
    ModelBatches& entry = by_model[groups[group].key.model];
    entry.model = items_[item].request->model.get();
    entry.groups.push_back(group);
    entry.batches.push_back(Gather(groups[group], evaluations, points));
    stats_.batches.push_back({InfoOf(item).model, groups[group].key.expert, entry.batches.back().rows.count});
  }
  // Sums are taken in the order of the experts, whatever the batches were, so that an image's arithmetic does not
  // depend on its neighbours: groups are walked expert by expert.
  std::vector<Velocity> velocities(items_.size());
  for (auto& [key, entry] : by_model) {
    entry.model->ComputeVelocities(entry.batches);
    std::vector<size_t> order(entry.groups.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return entry.batches[a].expert < entry.batches[b].expert; });
    for (const size_t i : order) Scatter(groups[entry.groups[i]], entry.batches[i], evaluations, &velocities);
  }
  return velocities;
}

void Tick::Advance() {
  std::vector<Point> points(items_.size());
  for (size_t i = 0; i < items_.size(); ++i) {
    points[i] = {&items_[i].image->x, static_cast<float>(StepOf(items_[i]).from)};
  }
  const std::vector<Velocity> first = Evaluate(evaluations_, points);

  // Where Heun's second evaluation takes place: the end of the Euler step.
  std::vector<std::vector<float>> ends(items_.size());
  std::vector<Evaluation> again;
  for (const Evaluation& evaluation : evaluations_) {
    const size_t i = evaluation.item;
    const SolverStep& step = StepOf(items_[i]);
    if (Failed(i) || !step.second_evaluation) continue;
    again.push_back(evaluation);
    if (!ends[i].empty()) continue;
    ends[i] = items_[i].image->x;
    for (size_t p = 0; p < ends[i].size(); ++p)
      ends[i][p] += static_cast<float>(step.to - step.from) * first[i].guided[p];
    points[i] = {&ends[i], static_cast<float>(step.to)};
  }
  const std::vector<Velocity> second = again.empty() ? first : Evaluate(again, points);

  for (size_t i = 0; i < items_.size(); ++i) {
    if (Failed(i)) continue;
    const SolverStep& step = StepOf(items_[i]);
    // Before x moves: it may be the point itself.
    std::vector<float>& estimate = items_[i].image->estimate;
    for (size_t p = 0; p < estimate.size(); ++p) {
      const std::vector<float>& own = step.second_evaluation ? second[i].own : first[i].own;
      estimate[p] = (*points[i].x)[p] - points[i].t * own[p];
    }
    const auto span = static_cast<float>(step.to - step.from);
    std::vector<float>& x = items_[i].image->x;
    for (size_t p = 0; p < x.size(); ++p) {
      const float velocity =
          step.second_evaluation ? 0.5f * (first[i].guided[p] + second[i].guided[p]) : first[i].guided[p];
      x[p] += span * velocity;
    }
    ++items_[i].image->steps_done;
    ++items_[i].request->steps_taken;
  }
}

StepStats Tick::Run() {
  stats_.images = static_cast<int64_t>(items_.size());
  Route();
  Advance();
  return std::move(stats_);
}

}  // namespace

StepStats StepImages(std::span<const StepItem> items, size_t max_rows_per_batch) {
  return Tick(items, std::max<size_t>(1, max_rows_per_batch)).Run();
}

}  // namespace atl::router
