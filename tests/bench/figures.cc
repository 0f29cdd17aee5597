#include "tests/bench/figures.h"

#include <cstdio>
#include <ctime>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace atl::bench {
namespace {

double Seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

double MonotonicSeconds() {
  return Seconds(CLOCK_MONOTONIC);
}

double CpuSeconds() {
  return Seconds(CLOCK_PROCESS_CPUTIME_ID);
}

void PrintFigure(const std::string& name, const std::string& metric, double value, const std::string& unit) {
  fmt::print("{}\n",
             nlohmann::ordered_json{{"case", name}, {"metric", metric}, {"value", value}, {"unit", unit}}.dump());
  std::fflush(stdout);
}

}  // namespace atl::bench
