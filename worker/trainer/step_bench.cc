// What a training step costs here against the same step written with stock autograd and ATen's optimizer operations, in
// one process of one thread, alternating; and the same step with its backward split into I and W, which comes one
// micro-batch later. Prints one JSON object per line.
//
//   step_bench [pairs] [width] [depth]
#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include <ATen/Parallel.h>

#include "worker/engine/engine.h"
#include "worker/trainer/learning_rate.h"
#include "worker/trainer/optimizer.h"
#include "worker/trainer/plain_dit.h"
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

struct Cost {
  double wall_seconds;
  double cpu_seconds;  // of the process: what another process on the machine takes does not count
};

template <typename F>
Cost Measure(F f) {
  const auto start = std::chrono::steady_clock::now();
  const std::clock_t cpu_start = std::clock();
  f();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
          static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC};
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Print(const char* name, const char* metric, double value, const char* unit) {
  std::printf("{\"case\": \"%s\", \"metric\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}\n", name, metric, value, unit);
}

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

int Main(int argc, char** argv) {
  const auto argument = [&](int i, int fallback) { return argc > i ? std::atoi(argv[i]) : fallback; };
  const int pairs = std::max(1, argument(1, 9));
  TrainerOptions options = SmallOptions();
  options.model = {.patch = 2, .width = argument(2, 256), .depth = argument(3, 8), .heads = 4, .mlp_ratio = 4.0};
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
  StockTrainer stock(options, plan, initial, &data);
  auto trainer = Trainer::Create(options, plan, 0, &data, nullptr, Clock::Real());
  auto split_trainer = Trainer::Create(options, SplitBackward(plan), 0, &data, nullptr, Clock::Real());
  for (const absl::Status& status : {trainer.status(), split_trainer.status()}) {
    if (status.ok()) continue;
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  const auto ours = [&] {
    if (!(*trainer)->Step().ok()) std::abort();
  };
  const auto split = [&] {
    if (!(*split_trainer)->Step().ok()) std::abort();
  };
  stock.Step();
  ours();
  split();
  std::vector<double> ratios, cpu_ratios, ours_seconds, stock_seconds, split_ratios, split_cpu_ratios;
  for (int i = 0; i < pairs; ++i) {
    const Cost of_stock = Measure([&] { stock.Step(); });
    const Cost of_ours = Measure(ours);
    const Cost of_split = Measure(split);
    split_ratios.push_back(of_split.wall_seconds / of_ours.wall_seconds);
    split_cpu_ratios.push_back(of_split.cpu_seconds / of_ours.cpu_seconds);
    stock_seconds.push_back(of_stock.wall_seconds);
    ours_seconds.push_back(of_ours.wall_seconds);
    ratios.push_back(of_ours.wall_seconds / of_stock.wall_seconds);
    cpu_ratios.push_back(of_ours.cpu_seconds / of_stock.cpu_seconds);
  }
  Print("step-vs-stock", "stock_step", Median(stock_seconds), "s");
  Print("step-vs-stock", "step", Median(ours_seconds), "s");
  Print("step-vs-stock", "time_ratio", Median(ratios), "1");
  Print("step-vs-stock", "cpu_ratio", Median(cpu_ratios), "1");
  Print("split-vs-whole", "time_ratio", Median(split_ratios), "1");
  Print("split-vs-whole", "cpu_ratio", Median(split_cpu_ratios), "1");
  return 0;
}

}  // namespace
}  // namespace atl::trainer

int main(int argc, char** argv) {
  return atl::trainer::Main(argc, argv);
}
