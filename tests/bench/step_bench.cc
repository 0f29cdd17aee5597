// A training step of this project against the same step written with stock autograd and ATen's optimizer operations:
// one process, one thread, taking turns. Prints where the time of both goes, and what a backward that is split into I
// and W costs, whose W comes one micro-batch later. One JSON object per line on standard output.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "tests/bench/figures.h"
#include "worker/engine/engine.h"
#include "worker/trainer/calls_testing.h"
#include "worker/trainer/learning_rate.h"
#include "worker/trainer/optimizer.h"
#include "worker/trainer/plain_dit_testing.h"
#include "worker/trainer/rank_measuring.h"
#include "worker/trainer/stage.h"
#include "worker/trainer/trainer_testing.h"

namespace atl::trainer {
namespace {

// The step as plain PyTorch has it: backward per micro-batch, foreach norm and clip, fused AdamW, foreach average.
class StockTrainer {
 public:
  StockTrainer(const TrainerOptions& options, const planner::Plan& plan, const Parameters& values, TrainingData* data)
      : options_(options), plan_(plan), dit_(ConfigOf(options), values), feed_(options, plan, /*replica=*/0, data) {
    for (const auto& [name, parameter] : dit_.parameters()) {
      parameters_.push_back(parameter);
      ema_.push_back(parameter.detach().clone());
      m_.push_back(at::zeros_like(ema_.back()));
      v_.push_back(at::zeros_like(ema_.back()));
    }
  }

  double Step() {
    feed_.Begin(step_ * options_.training.batch_size);
    double loss_sum = 0;
    for (int32_t m = 0; m < plan_.micro_batches; ++m) {
      const MicroBatch& batch = **feed_.Get(m);
      const at::Tensor loss =
          at::mse_loss(dit_.Run(batch.noised.x_t, batch.noised.t, batch.noised.classes), batch.noised.target);
      (loss / plan_.micro_batches).backward();
      loss_sum += loss.item<double>();
    }
    Update();
    return loss_sum / plan_.micro_batches;
  }

 private:
  void Update() {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (at::Tensor& parameter : parameters_) {
      gradients.push_back(parameter.grad());
      parameter.mutable_grad() = at::Tensor();
    }
    const double norm = at::stack(at::_foreach_norm(gradients)).norm().item<double>();
    if (norm > options_.training.clip_norm) at::_foreach_mul_(gradients, options_.training.clip_norm / norm);
    const std::vector<at::Tensor> steps(parameters_.size(), at::full({}, static_cast<double>(step_ + 1)));
    const spec::TrainingSpec& t = options_.training;
    at::_fused_adamw_(parameters_, gradients, m_, v_, {}, steps, LearningRate(t, step_), t.beta1, t.beta2,
                      t.weight_decay, t.epsilon, false, false);
    at::_foreach_lerp_(ema_, parameters_, 1 - EmaDecay(t, step_));
    ++step_;
  }

  const TrainerOptions options_;
  const planner::Plan plan_;
  const PlainDit dit_;
  BatchFeed feed_;
  std::vector<at::Tensor> parameters_, ema_, m_, v_;
  int64_t step_ = 0;
};

// F and I of each micro-batch, and then W of the one before.
planner::Plan SplitBackward(planner::Plan plan) {
  std::string line;
  for (int32_t m = 0; m < plan.micro_batches; ++m) {
    line += fmt::format("{}0F{},0I{}", m == 0 ? "" : ",", m, m);
    if (m > 0) line += fmt::format(",0W{}", m - 1);
  }
  plan.schedule = *schedule::ParseText(line + fmt::format(",0W{}", plan.micro_batches - 1));
  return plan;
}

struct Settings {
  int pairs = 9;
  int width = 256;
  int depth = 8;
  bool operators = false;
};

// One kind of step, and what its turns took.
struct Rival {
  std::function<void()> step;
  std::vector<double> wall_seconds;
  std::vector<double> cpu_seconds;  // of the process, without what others on the machine take

  void TakeTurn() {
    const double wall = bench::MonotonicSeconds();
    const double cpu = bench::CpuSeconds();
    step();
    wall_seconds.push_back(bench::MonotonicSeconds() - wall);
    cpu_seconds.push_back(bench::CpuSeconds() - cpu);
  }
};

double MedianRatio(const std::vector<double>& values, const std::vector<double>& others) {
  std::vector<double> ratios;
  for (size_t i = 0; i < values.size(); ++i) ratios.push_back(values[i] / others[i]);
  return Median(ratios);
}

void PrintRatios(const std::string& name, const Rival& rival, const Rival& other) {
  bench::PrintFigure(name, "time_ratio", MedianRatio(rival.wall_seconds, other.wall_seconds), "1");
  bench::PrintFigure(name, "cpu_ratio", MedianRatio(rival.cpu_seconds, other.cpu_seconds), "1");
}

// The seconds of a step by kind of action, of which "between" is what the engine does itself, and "after" the norm of
// the gradients, clipping, the update and the average.
std::map<std::string, double> SecondsByAction(const Trainer& trainer, double step_seconds) {
  std::map<std::string, double> seconds;
  double last = 0;
  for (const engine::ActionTiming& timing : trainer.timings()) {
    const std::string kind(1, schedule::KindLetter(timing.action.kind));
    seconds[kind] += absl::ToDoubleSeconds(timing.end - timing.start);
    last = absl::ToDoubleSeconds(timing.passed_on);
  }
  double computed = 0;
  for (const auto& [kind, value] : seconds) computed += value;
  seconds["between"] = last - computed;
  seconds["after"] = step_seconds - last;
  return seconds;
}

// On standard error: the operators of one step that take most, without those that they call.
void ListOperators(const char* name, const std::function<void()>& step) {
  std::vector<std::pair<double, std::string>> lines;
  double sum = 0;
  {
    const RecordedCalls calls;
    step();
    for (const auto& [operator_name, of_name] : calls.all()) {
      sum += of_name.seconds;
      lines.emplace_back(of_name.seconds,
                         fmt::format("{:8.2f} ms {:6d} {}", 1e3 * of_name.seconds, of_name.count, operator_name));
    }
  }
  std::sort(lines.rbegin(), lines.rend());
  fmt::print(stderr, "{}: {:.2f} ms in operators\n", name, 1e3 * sum);
  for (size_t i = 0; i < std::min<size_t>(lines.size(), 45); ++i) fmt::print(stderr, "{}\n", lines[i].second);
}

std::unique_ptr<Trainer> MakeTrainer(const TrainerOptions& options, const planner::Plan& plan, TrainingData* data) {
  auto trainer = Trainer::Create(options, plan, 0, data, nullptr, Clock::Real());
  if (trainer.ok()) return *std::move(trainer);
  fmt::print(stderr, "{}\n", trainer.status().ToString());
  std::exit(1);
}

void MustStep(Trainer* trainer) {
  const absl::StatusOr<StepResult> result = trainer->Step();
  if (result.ok()) return;
  fmt::print(stderr, "{}\n", result.status().ToString());
  std::exit(1);
}

void Run(const Settings& settings) {
  TrainerOptions options = SmallOptions();
  options.model = {.patch = 2, .width = settings.width, .depth = settings.depth, .heads = 4, .mlp_ratio = 4.0};
  options.height = options.width = 16;
  options.training.batch_size = 64;
  at::set_num_threads(1);
  const planner::Plan plan = PlanFor(options, 1, "1f1b", 8);
  StrokeData data(256, options.height, 5);

  Parameters initial;
  for (const model::NamedTensor& p :
       model::NamedParameters(model::BuildLayers(ConfigOf(options), options.seed, 0, options.model.depth + 2))) {
    initial[p.name] = p.tensor;
  }
  StockTrainer stock_trainer(options, plan, initial, &data);
  const auto trainer = MakeTrainer(options, plan, &data);
  const auto split_trainer = MakeTrainer(options, SplitBackward(plan), &data);

  Rival stock{.step = [&] { stock_trainer.Step(); }};
  Rival ours{.step = [&] { MustStep(trainer.get()); }};
  Rival split{.step = [&] { MustStep(split_trainer.get()); }};
  for (const Rival* rival : {&stock, &ours, &split}) rival->step();
  if (settings.operators) {
    ListOperators("stock autograd", stock.step);
    ListOperators("this project", ours.step);
  }
  std::map<std::string, std::vector<double>> by_action;
  for (int i = 0; i < settings.pairs; ++i) {
    // The first turn goes round, so that none is always next to the same other.
    std::vector<Rival*> turns{&stock, &ours, &split};
    std::rotate(turns.begin(), turns.begin() + i % 3, turns.end());
    for (Rival* rival : turns) rival->TakeTurn();
    for (const auto& [kind, seconds] : SecondsByAction(*trainer, ours.wall_seconds.back())) {
      by_action[kind].push_back(seconds);
    }
  }
  bench::PrintFigure("autograd", "stock_step", Median(stock.wall_seconds), "s");
  bench::PrintFigure("autograd", "step", Median(ours.wall_seconds), "s");
  PrintRatios("autograd", ours, stock);
  for (const auto& [kind, seconds] : by_action) bench::PrintFigure("autograd", kind, Median(seconds), "s");
  PrintRatios("split", split, ours);
}

int Main(int argc, char** argv) {
  Settings settings;
  CLI::App app("A training step against stock autograd");
  app.add_option("--pairs", settings.pairs, "Turns of each")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--width", settings.width, "Width of the model")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--depth", settings.depth, "Blocks of the model")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_flag("--operators", settings.operators, "List the operators of a step on standard error");
  CLI11_PARSE(app, argc, argv);
  bench::KeepStandardOutputForFigures();
  Run(settings);
  return bench::EndBench("step_bench", absl::OkStatus());
}

}  // namespace
}  // namespace atl::trainer

int main(int argc, char** argv) {
  return atl::trainer::Main(argc, argv);
}
