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

// Reserves standard output for PrintFigure. Anything else that this process, or a process that it starts, writes there
// goes to standard error, logs of libraries among it. Call it once, before any fork; the first PrintFigure does where
// it was not called, too late for what was written before.
void KeepStandardOutputForFigures();

// Prints one JSON object on a line: case, metric, value, unit, and with a target `at_least` or `at_most` and
// `target_met`. NaN meets no target.
void PrintFigure(const std::string& name, const std::string& metric, double value, const std::string& unit,
                 const std::optional<Target>& target = std::nullopt);

// Returns the exit code of a bench: 1 when `status` is an error or a figure missed its target. Standard error says
// which.
int EndBench(const std::string& program, const absl::Status& status);

}  // namespace atl::bench
