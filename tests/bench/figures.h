// Prints the figures of a bench, and measures time.
//
//   int main(int argc, char** argv) {
//     ...parse the command line...
//     KeepStandardOutputForFigures();
//     const absl::Status status = Run();           // PrintFigure("case", "time_ratio", ratio, "ratio", AtMost(0.98))
//     return EndBench("my_bench", status);
//   }
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"

namespace atl::bench {

double MonotonicSeconds();
double CpuSeconds();  // of this process

struct Target {
  bool at_least = false;  // otherwise at most
  double value = 0;
};
inline Target AtMost(double value) {
  return {.at_least = false, .value = value};
}
inline Target AtLeast(double value) {
  return {.at_least = true, .value = value};
}

// Reserves standard output for PrintFigure. All other output there of this process and its children, including
// libraries' logs, goes to standard error. Call it once, before any fork. Otherwise the first PrintFigure calls it, too
// late for earlier output.
void KeepStandardOutputForFigures();

// Prints one JSON object on a line: case, metric, value, unit, and with a target `at_least` or `at_most` and
// `target_met`. NaN meets no target.
void PrintFigure(const std::string& name, const std::string& metric, double value, const std::string& unit,
                 const std::optional<Target>& target = std::nullopt);

// Returns the exit code of a bench: 1 if `status` is an error or a figure missed its target. Names them on standard
// error.
int EndBench(const std::string& program, const absl::Status& status);

}  // namespace atl::bench
