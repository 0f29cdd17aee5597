#include "tests/bench/figures.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace atl::bench {
namespace {

double Seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Standard output as the bench was started with it; null before KeepStandardOutputForFigures.
FILE* figures = nullptr;

std::vector<std::string>& Missed() {
  static auto* const missed = new std::vector<std::string>;
  return *missed;
}

[[noreturn]] void Fail(const char* what) {
  std::perror(what);
  std::abort();
}

}  // namespace

double MonotonicSeconds() {
  return Seconds(CLOCK_MONOTONIC);
}

double CpuSeconds() {
  return Seconds(CLOCK_PROCESS_CPUTIME_ID);
}

void KeepStandardOutputForFigures() {
  std::fflush(stdout);
  const int own = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  figures = own < 0 ? nullptr : fdopen(own, "w");
  if (figures == nullptr || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) Fail("standard output");
}

void PrintFigure(const std::string& name, const std::string& metric, double value, const std::string& unit,
                 const std::optional<Target>& target) {
  if (figures == nullptr) KeepStandardOutputForFigures();
  nlohmann::ordered_json line{{"case", name}, {"metric", metric}, {"value", value}, {"unit", unit}};
  if (target.has_value()) {
    const bool met = target->at_least ? value >= target->value : value <= target->value;
    const std::string bound = target->at_least ? "at_least" : "at_most";
    line[bound] = target->value;
    line["target_met"] = met;
    if (!met) Missed().push_back(fmt::format("{} {}: {:.5g}, {} {:.5g}", name, metric, value, bound, target->value));
  }
  fmt::print(figures, "{}\n", line.dump());
  std::fflush(figures);
}

int EndBench(const std::string& program, const absl::Status& status) {
  if (!status.ok()) fmt::print(stderr, "{}: {}\n", program, status.ToString());
  for (const std::string& missed : Missed()) fmt::print(stderr, "{}: target missed: {}\n", program, missed);
  return status.ok() && Missed().empty() ? 0 : 1;
}

}  // namespace atl::bench
