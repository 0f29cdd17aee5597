// The figures of `atoll report` for samples of a good model of the digits.
#pragma once

#include <string>
#include <vector>

#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace atl {

// One entry of the report's "samples": a line per figure that is out of bounds. The bounds come from real images, never
// from a model. digits_gate_test scores 500 images, 50 of each class, that are neither training nor held-out images, in
// eight splits. Against the same figures of training images they reach: accuracy 0.974 to 0.994; MMD 0.010 to 0.004
// below; density 0.99 to 1.06 times, coverage 0.99 to 1.01 times, recall 0.97 to 1.03 times, memorisation 0.95 to 1.05
// times. Each bound lies well outside of that, and collapse, blur, noise and copies lie further: recall 0.00 and 0.03
// of class means and of images half way to them, memorisation 0 of copies.
inline std::vector<std::string> GateProblems(const nlohmann::json& samples) {
  std::vector<std::string> problems;
  const auto expect = [&](const char* figure, double found, double least, double most) {
    // Written so that NaN is a problem.
    if (found >= least && found <= most) return;
    problems.push_back(fmt::format("{}: expected {:.3f} to {:.3f}, found {:.3f}", figure, least, most, found));
  };
  const auto& found = samples.at("diversity");
  const auto& real = samples.at("diversity_of_training");
  const double baseline = samples.at("memorisation_baseline");
  constexpr double kNoLimit = 1e9;
  expect("accuracy", samples.at("nearest_neighbour_accuracy"), 0.97, 1);
  expect("mmd", samples.at("mmd"), -1, samples.at("mmd_of_training").get<double>() + 0.02);
  expect("density", found.at("density"), 0.8 * real.at("density").get<double>(), 2 * real.at("density").get<double>());
  expect("coverage", found.at("coverage"), 0.8 * real.at("coverage").get<double>(), 1);
  expect("recall", found.at("recall"), 0.5 * real.at("recall").get<double>(), 1);
  expect("memorisation", samples.at("memorisation_ratio"), 0.85 * baseline, kNoLimit);
  return problems;
}

}  // namespace atl
