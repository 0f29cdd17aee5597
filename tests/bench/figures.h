// What benches print and measure with.
#pragma once

#include <string>

namespace atl::bench {

double MonotonicSeconds();
double CpuSeconds();  // of this process

// One JSON object per line on standard output.
void PrintFigure(const std::string& name, const std::string& metric, double value, const std::string& unit);

}  // namespace atl::bench
