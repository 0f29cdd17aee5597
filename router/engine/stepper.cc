#include "router/engine/stepper.h"

#include <algorithm>
#include <map>

#include "common/base/errors.h"
#include "fmt/format.h"
#include "router/policy/step_batching.h"

namespace atl::router {
namespace {

// An expert that an item waits for.
struct AwaitedVelocity {
  size_t item = 0;
  int32_t expert = 0;
};

class Tick {
 public:
  Tick(std::span<const StepItem> items, size_t max_rows) : items_(items), max_rows_(max_rows) {}

  StepStats Run();

 private:
  ImageStep& StepOf(size_t item) const { return *items_[item].image->step; }
  const SamplerInfo& InfoOf(size_t item) const { return items_[item].request->model->info(); }
  bool Failed(size_t item) const { return !items_[item].request->failure.ok(); }

  void Begin();
  void Route();
  void RouteModel(const std::vector<size_t>& items);
  void TakePosterior(size_t item, std::span<const float> row);
  // In the order of the items: what waited longest runs first.
  std::vector<AwaitedVelocity> Awaited() const;
  void Evaluate(const std::vector<AwaitedVelocity>& awaited);
  VelocityBatch Gather(const Batch& batch, const std::vector<AwaitedVelocity>& awaited) const;
  void Scatter(const Batch& batch, const VelocityBatch& result, const std::vector<AwaitedVelocity>& awaited);
  void Finish();

  const std::span<const StepItem> items_;
  const size_t max_rows_;
  StepStats stats_;
};

void AppendRow(const EvaluationPoint& point, int64_t class_row, Rows* rows) {
  rows->x.insert(rows->x.end(), point.x.begin(), point.x.end());
  rows->t.push_back(point.t);
  rows->classes.push_back(class_row);
  rows->estimate.insert(rows->estimate.end(), point.estimate.begin(), point.estimate.end());
  ++rows->count;
}

void Tick::Begin() {
  for (const auto& [request, image] : items_) {
    image->step.emplace(request->model->info(), request->order, image->order, request->grid[image->steps_done],
                        &image->state);
    if (image->step->need() == StepNeed::kVelocities) request->routing.Count(image->step->choice());
  }
}

void Tick::TakePosterior(size_t item, std::span<const float> row) {
  ActiveRequest& request = *items_[item].request;
  const absl::Status taken = StepOf(item).TakePosterior(row);
  if (!taken.ok()) {
    request.failure = taken;
    return;
  }
  request.routing.Count(StepOf(item).choice());
  ++request.routing.routed_image_steps;
  request.routing.entropy_sum += Entropy(row);
}

void Tick::RouteModel(const std::vector<size_t>& items) {
  const size_t parts = (items.size() + max_rows_ - 1) / max_rows_;
  std::vector<PosteriorBatch> batches(parts);
  const auto begin_of = [&](size_t part) { return items.size() * part / parts; };
  for (size_t part = 0; part < parts; ++part) {
    for (size_t i = begin_of(part); i < begin_of(part + 1); ++i) {
      const EvaluationPoint point = StepOf(items[i]).point();
      AppendRow(point, point.class_row, &batches[part].rows);
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
    if (StepOf(i).need() == StepNeed::kPosterior) routed[items_[i].request->model_key].push_back(i);
  }
  for (const auto& [model, items] : routed) RouteModel(items);
}

std::vector<AwaitedVelocity> Tick::Awaited() const {
  std::vector<AwaitedVelocity> awaited;
  for (size_t i = 0; i < items_.size(); ++i) {
    if (Failed(i)) continue;
    for (const int32_t expert : StepOf(i).awaited()) awaited.push_back({i, expert});
  }
  return awaited;
}

VelocityBatch Tick::Gather(const Batch& batch, const std::vector<AwaitedVelocity>& awaited) const {
  VelocityBatch gathered{.expert = batch.key.network};
  gathered.rows.x.reserve(batch.rows() * InfoOf(awaited[batch.evaluations.front()].item).pixels());
  for (const size_t i : batch.evaluations) {
    const EvaluationPoint point = StepOf(awaited[i].item).point();
    AppendRow(point, point.class_row, &gathered.rows);
    if (point.guided) AppendRow(point, point.null_row, &gathered.rows);
  }
  return gathered;
}

void Tick::Scatter(const Batch& batch, const VelocityBatch& result, const std::vector<AwaitedVelocity>& awaited) {
  std::span<const float> rows = result.velocity;
  for (const size_t i : batch.evaluations) {
    const auto& [item, expert] = awaited[i];
    if (!result.status.ok()) {
      items_[item].request->failure = WithContext(result.status, fmt::format("expert {}", expert));
      continue;
    }
    const auto pixels = static_cast<size_t>(InfoOf(item).pixels());
    const size_t branches = batch.key.guided ? 2 : 1;
    StepOf(item).TakeVelocity(StepOf(item).point().number, expert, rows.first(pixels),
                              rows.subspan((branches - 1) * pixels, pixels));
    rows = rows.subspan(branches * pixels);
  }
}

void Tick::Evaluate(const std::vector<AwaitedVelocity>& awaited) {
  std::vector<GroupKey> keys;
  keys.reserve(awaited.size());
  for (const auto& [item, expert] : awaited) {
    const SamplerInfo& info = InfoOf(item);
    keys.push_back({.model = items_[item].request->model_key,
                    .network = expert,
                    .height = info.height,
                    .width = info.width,
                    .guided = StepOf(item).point().guided});
  }
  const std::vector<Batch> groups = GroupIntoBatches(keys, max_rows_);
  struct ModelBatches {
    ModelBackend* model = nullptr;
    std::vector<size_t> groups;
    std::vector<VelocityBatch> batches;
  };
  std::map<int64_t, ModelBatches> by_model;
  for (size_t group = 0; group < groups.size(); ++group) {
    const size_t item = awaited[groups[group].evaluations.front()].item;
    ModelBatches& entry = by_model[groups[group].key.model];
    entry.model = items_[item].request->model.get();
    entry.groups.push_back(group);
    entry.batches.push_back(Gather(groups[group], awaited));
    stats_.batches.push_back({InfoOf(item).model, groups[group].key.network, entry.batches.back().rows.count});
  }
  for (auto& [key, entry] : by_model) {
    entry.model->ComputeVelocities(entry.batches);
    for (size_t i = 0; i < entry.groups.size(); ++i) Scatter(groups[entry.groups[i]], entry.batches[i], awaited);
  }
}

void Tick::Finish() {
  for (size_t i = 0; i < items_.size(); ++i) {
    const auto& [request, image] = items_[i];
    if (!Failed(i)) {
      image->step->Finish();
      ++image->steps_done;
      ++request->steps_taken;
    }
    image->step.reset();
  }
}

StepStats Tick::Run() {
  stats_.images = static_cast<int64_t>(items_.size());
  Begin();
  Route();
  for (std::vector<AwaitedVelocity> awaited = Awaited(); !awaited.empty(); awaited = Awaited()) Evaluate(awaited);
  Finish();
  return std::move(stats_);
}

}  // namespace

StepStats StepImages(std::span<const StepItem> items, size_t max_rows_per_batch) {
  return Tick(items, std::max<size_t>(1, max_rows_per_batch)).Run();
}

}  // namespace atl::router
