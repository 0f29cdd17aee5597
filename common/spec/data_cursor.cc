#include "common/spec/data_cursor.h"

#include <algorithm>

namespace atl::spec {

int64_t BatchStart(int64_t cursor, int64_t ahead, int64_t batch_size, const std::vector<SkippedWindow>& skipped) {
  std::vector<SkippedWindow> windows = skipped;
  std::sort(windows.begin(), windows.end(), [](const auto& a, const auto& b) { return a.first_step < b.first_step; });
  for (const SkippedWindow& window : windows) {
    const int64_t first = (window.first_step - 1) * batch_size;
    const int64_t end = first + window.steps * batch_size;
    if (cursor + ahead * batch_size < first) break;
    if (end <= cursor) continue;
    if (cursor < first) {
      ahead -= (first - cursor) / batch_size;
    }
    cursor = end;
  }
  return cursor + ahead * batch_size;
}

int64_t UnskippedStep(int64_t step, const std::vector<SkippedWindow>& skipped) {
  return BatchStart(0, step - 1, 1, skipped) + 1;
}

}  // namespace atl::spec
