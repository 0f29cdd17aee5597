#include "client/table.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "common/base/one_line.h"
#include "fmt/format.h"

namespace atl::client {

int DisplayWidth(std::string_view text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string Shorten(std::string_view text, int width) {
  if (DisplayWidth(text) <= width) return std::string(text);
  if (width <= 0) return "";
  size_t end = 0;
  for (int letters = 0; end < text.size(); ++end) {
    const bool starts_letter = (static_cast<unsigned char>(text[end]) & 0xC0) != 0x80;
    if (starts_letter && letters++ == width - 1) break;
  }
  return std::string(text.substr(0, end)) + "…";
}

std::string OneLine(std::string_view text) {
  std::string spaced(text);
  for (char& c : spaced) {
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
  }
  return atl::OneLine(spaced);
}

void Table::Add(std::vector<std::string> row) {
  for (std::string& cell : row) cell = OneLine(cell);
  rows_.push_back(std::move(row));
}

std::string Table::Text(int width) const {
  std::vector<int> widths(rows_.front().size());
  for (const auto& row : rows_) {
    for (size_t c = 0; c < widths.size(); ++c) widths[c] = std::max(widths[c], DisplayWidth(row[c]));
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    int used = 0;
    for (size_t c = 0; c < row.size(); ++c) {
      const bool last = c + 1 == row.size();
      if (last) {
        constexpr int kLeast = 8;
        line += width > 0 ? Shorten(row[c], std::max(width - used, kLeast)) : row[c];
      } else {
        line += row[c] + std::string(static_cast<size_t>(widths[c] - DisplayWidth(row[c]) + 2), ' ');
        used += widths[c] + 2;
      }
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string EnumText(std::string_view name) {
  if (name.empty() || name.ends_with("_UNSPECIFIED")) return "unknown";
  std::string text(name.substr(name.find('_') + 1));
  for (char& c : text) c = c == '_' ? ' ' : absl::ascii_tolower(static_cast<unsigned char>(c));
  return text;
}

std::string Bar(double share, int cells) {
  const int full = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * cells));
  std::string bar;
  for (int i = 0; i < cells; ++i) bar += i < full ? "█" : "░";
  return bar;
}

std::string DurationText(absl::Duration duration) {
  if (duration < absl::ZeroDuration() || duration > absl::Hours(24 * 365 * 10)) return "-";
  const int64_t seconds = absl::ToInt64Seconds(duration);
  if (seconds >= 3600) return fmt::format("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
  return fmt::format("{}:{:02}", seconds / 60, seconds % 60);
}

std::string TimeText(absl::Time time) {
  if (time <= absl::UnixEpoch() || time == absl::InfiniteFuture()) return "-";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", time, absl::UTCTimeZone());
}

std::string BytesText(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string RateText(double per_second) {
  if (!std::isfinite(per_second) || per_second < 0) return "-";
  return per_second >= 10 ? fmt::format("{:.0f}", per_second) : fmt::format("{:.1f}", per_second);
}

}  // namespace atl::client
