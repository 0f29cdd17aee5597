#include "worker/trainer/optimizer.h"

#include <cmath>

#include <gtest/gtest.h>

#include "worker/trainer/learning_rate.h"

namespace atl::trainer {
namespace {

spec::TrainingSpec Training() {
  spec::TrainingSpec training;
  training.steps = 100;
  training.learning_rate = 0.01;
  training.weight_decay = 0.1;
  training.ema_decay = 0.9;
  return training;
}

// The textbook update, element by element in double.
struct Reference {
  double weight, m = 0, v = 0, ema;
  void Step(int64_t step, double gradient, const spec::TrainingSpec& t) {
    const double lr = LearningRate(t, step);
    weight -= lr * t.weight_decay * weight;
    m = t.beta1 * m + (1 - t.beta1) * gradient;
    v = t.beta2 * v + (1 - t.beta2) * gradient * gradient;
    const double n = static_cast<double>(step + 1);
    weight -= lr * (m / (1 - std::pow(t.beta1, n))) / (std::sqrt(v / (1 - std::pow(t.beta2, n))) + t.epsilon);
    ema = EmaDecay(t, step) * ema + (1 - EmaDecay(t, step)) * weight;
  }
};

TEST(OptimizerTest, FollowsAdamWAndTheAverageItsClosedForm) {
  const at::Tensor weight = at::tensor({1.0F, -2.0F, 0.5F}).requires_grad_(true);
  const spec::TrainingSpec training = Training();
  Optimizer optimizer({{"w", weight}}, training);
  std::vector<Reference> reference;
  for (const double value : {1.0, -2.0, 0.5}) reference.push_back({.weight = value, .ema = value});
  for (int64_t step = 0; step < 50; ++step) {
    weight.mutable_grad() = at::tensor({0.3F, -0.1F, 2.0F}) * std::cos(static_cast<double>(step));
    for (size_t i = 0; i < 3; ++i) {
      reference[i].Step(step, 0.5 * weight.grad()[static_cast<int64_t>(i)].item<double>(), training);
    }
    optimizer.Step(step, 0.5);
    EXPECT_FALSE(weight.grad().defined());
  }
  const at::Tensor ema = optimizer.State(0)[1].tensor;
  EXPECT_EQ(optimizer.State(0)[1].name, "ema/w");
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(weight[static_cast<int64_t>(i)].item<double>(), reference[i].weight, 1e-5);
    EXPECT_NEAR(ema[static_cast<int64_t>(i)].item<double>(), reference[i].ema, 1e-5);
  }
}

TEST(OptimizerTest, GradientNormsAreThoseOfEachParameter) {
  std::vector<model::NamedTensor> parameters;
  for (const int64_t n : {1, 7, 8, 1000, 1003}) {
    parameters.push_back({"w", at::zeros({n}).requires_grad_(true)});
    parameters.back().tensor.mutable_grad() = at::randn({n});
  }
  const std::vector<at::Tensor> norms = Optimizer(parameters, Training()).GradientNorms();
  ASSERT_EQ(norms.size(), parameters.size());
  for (size_t i = 0; i < norms.size(); ++i) {
    const double expected = parameters[i].tensor.grad().to(at::kDouble).norm().item<double>();
    EXPECT_NEAR(norms[i].item<double>(), expected, 1e-6 * expected);
  }
}

// More than what is updated in one go, with and without clipping: every parameter once, as if it were alone.
TEST(OptimizerTest, ManyLargeParametersAreEachUpdatedAsOne) {
  for (const double scale : {1.0, 0.5}) {
    std::vector<model::NamedTensor> together;
    for (int i = 0; i < 5; ++i) {
      together.push_back({"w", at::ones({300, 1000}).requires_grad_(true)});
      together.back().tensor.mutable_grad() = at::full({300, 1000}, 0.1 * (i + 1));
    }
    std::vector<model::NamedTensor> alone;
    for (const model::NamedTensor& parameter : together) {
      alone.push_back({"w", parameter.tensor.detach().clone().requires_grad_(true)});
      alone.back().tensor.mutable_grad() = parameter.tensor.grad().clone();
      Optimizer({alone.back()}, Training()).Step(0, scale);
    }
    Optimizer(together, Training()).Step(0, scale);
    for (size_t i = 0; i < together.size(); ++i) {
      EXPECT_TRUE(at::equal(together[i].tensor, alone[i].tensor)) << i;
      EXPECT_FALSE(together[i].tensor.grad().defined());
    }
  }
}

TEST(OptimizerTest, AnUpdateMovesTheParametersVersion) {
  const at::Tensor weight = at::ones({4}).requires_grad_(true);
  Optimizer optimizer({{"w", weight}}, Training());
  const uint32_t before = weight._version();
  weight.mutable_grad() = at::ones({4});
  optimizer.Step(0, 1);
  EXPECT_GT(weight._version(), before) << "caches of casts would keep old weights";
}

TEST(LearningRateTest, SchedulesFollowTheirTable) {
  struct Row {
    const char* schedule;
    int64_t step;
    double expected;
  };
  spec::TrainingSpec training;
  training.steps = 110;
  training.warmup_steps = 10;
  training.learning_rate = 1.0;
  for (const Row& row :
       {Row{"constant", 0, 0.1}, Row{"constant", 9, 1.0}, Row{"constant", 10, 1.0}, Row{"constant", 1000, 1.0},
        Row{"linear", 4, 0.5}, Row{"linear", 10, 1.0}, Row{"linear", 60, 0.5}, Row{"linear", 109, 0.01},
        Row{"linear", 200, 0.0}, Row{"cosine", 10, 1.0}, Row{"cosine", 60, 0.5},
        Row{"cosine", 35, 0.5 + std::sqrt(2.0) / 4}, Row{"cosine", 110, 0.0}}) {
    training.learning_rate_schedule = row.schedule;
    EXPECT_NEAR(LearningRate(training, row.step), row.expected, 1e-12) << row.schedule << " step " << row.step;
  }
}

TEST(LearningRateTest, AverageDecayWarmsUp) {
  spec::TrainingSpec training;
  training.ema_decay = 0.999;
  EXPECT_NEAR(EmaDecay(training, 0), 2.0 / 11, 1e-12);
  EXPECT_NEAR(EmaDecay(training, 89), 91.0 / 100, 1e-12);
  EXPECT_EQ(EmaDecay(training, 1'000'000), 0.999);
}

}  // namespace
}  // namespace atl::trainer
