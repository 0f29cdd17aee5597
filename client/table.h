// Text for people: aligned tables, numbers, times. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"

namespace atl::client {

// Columns have the width that they need, two spaces apart. The last one is cut with "…" where `width` ends (0: never).
// OneLine is applied to cells.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void Add(std::vector<std::string> row);
  std::string Text(int width) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Columns that a terminal shows for UTF-8 text without escapes or wide letters.
int DisplayWidth(std::string_view text);
// Returns at most `width` columns of the text, ending in "…" when cut.
std::string Shorten(std::string_view text, int width);
// Returns untrusted text on one line: line breaks and tabs become spaces, other control characters become escapes, so
// that a server's text cannot move the cursor.
std::string OneLine(std::string_view text);

// Converts the name of a proto's enum value to words: "STATE_LEASED" -> "leased", "MODE_TOP_K" -> "top k"; the unset
// value and unknown ones -> "unknown".
std::string EnumText(std::string_view name);
// Returns "███░░": `cells` cells, of which `share` are full.
std::string Bar(double share, int cells);
std::string DurationText(absl::Duration duration);  // "0:12", "3:05:09"
std::string TimeText(absl::Time time);              // "2026-11-21 03:17:05" in UTC; "-" for the epoch and infinity
std::string BytesText(int64_t bytes);               // "1.5 MiB"
std::string RateText(double per_second);            // "812", "3.4"

}  // namespace atl::client
