#include "common/schedule/drawing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace atl::schedule {
namespace {

// Pixels.
constexpr double kLeft = 72;
constexpr double kChart = 1040;
constexpr double kRight = 88;
constexpr double kRow = 30;
constexpr double kBox = 24;
constexpr double kMemoryRow = 34;
constexpr double kMemoryBox = 26;
// Narrower boxes go without the number of their micro-batch; more boxes than this, without tooltips.
constexpr double kLeastForDigit = 9;
constexpr size_t kMostTooltips = 6000;
constexpr size_t kMostTransfers = 4000;

struct Kind {
  ActionKind kind;
  std::string_view name;
  // By the number of the rank's stages before the action's: shades distinguish the chunks of one rank.
  std::array<std::string_view, 3> fills;
  std::string_view ink;
};

constexpr Kind kKinds[] = {
    {ActionKind::kForward, "F forward", {"#5b9bd5", "#2f6fab", "#1d4a75"}, "#ffffff"},
    {ActionKind::kSelfConditioning, "C self-conditioning", {"#b9d3ec", "#96badd", "#749fc9"}, "#1d3a57"},
    {ActionKind::kInputGradient, "I input gradient", {"#4db6a0", "#2b8c78", "#1a5f51"}, "#ffffff"},
    {ActionKind::kWeightGradient, "W weight gradient", {"#f2b84b", "#d79522", "#a66f10"}, "#3b2c06"},
    {ActionKind::kBackward, "B both gradients", {"#8d7cc9", "#6656a8", "#463a7a"}, "#ffffff"},
    {ActionKind::kFrozen, "E frozen layers", {"#dd7fa0", "#dd7fa0", "#dd7fa0"}, "#ffffff"},
    {ActionKind::kReduce, "R reduction", {"#7a8594", "#5f6a79", "#48515e"}, "#ffffff"},
};
constexpr std::string_view kUpdateFill = "#b4bcc8";
constexpr std::string_view kIdleFill = "#f0f2f5";
constexpr std::string_view kText = "#27303c";
constexpr std::string_view kMuted = "#6b7684";

const Kind& KindOf(const Action& action) {
  return *std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& k) { return k.kind == action.kind; });
}

// Returns the number in an action's box: its micro-batch, its piece, or its stage.
int32_t NumberOf(const Action& action) {
  return action.kind == ActionKind::kReduce ? action.stage : action.micro_batch;
}

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '&') {
      escaped += "&amp;";
    } else if (c == '<') {
      escaped += "&lt;";
    } else if (c == '>') {
      escaped += "&gt;";
    } else if (c == '"') {
      escaped += "&quot;";
    } else {
      escaped += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
  }
  return escaped;
}

// Two decimals where they say something: a picture has thousands of numbers.
std::string Pixels(double value) {
  std::string text = fmt::format("{:.2f}", value);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

struct Unit {
  double seconds;
  std::string_view name;
};

Unit UnitFor(double end_seconds) {
  if (end_seconds >= 2) return {1, "s"};
  if (end_seconds >= 2e-3) return {1e-3, "ms"};
  return {1e-6, "µs"};
}

// 1, 2 or 5 times a power of ten, so that `span` has about ten ticks.
double TickStep(double span) {
  const double rough = span / 12;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

std::string BytesText(double bytes) {
  constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return fmt::format("{:.{}f} {}", bytes, bytes >= 100 || unit == 0 ? 0 : 1, kUnits[unit]);
}

// Stages of a rank, in order of the model.
std::vector<int32_t> StagesOf(const DrawnRank& rank) {
  std::vector<int32_t> stages;
  for (const SimulatedAction& drawn : rank.actions) {
    if (HasMicroBatch(drawn.action.kind)) stages.push_back(drawn.action.stage);
  }
  std::sort(stages.begin(), stages.end());
  stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  return stages;
}

class SvgWriter {
 public:
  explicit SvgWriter(const Drawing& drawing)
      : drawing_(drawing), end_(std::max(drawing.end_seconds(), 1e-9)), unit_(UnitFor(end_)) {
    for (const DrawnRank& rank : drawing.ranks) {
      boxes_ += rank.actions.size();
      for (const SimulatedAction& drawn : rank.actions) {
        size_t& digits = digits_[drawn.action.kind];
        digits = std::max(digits, fmt::format("{}", NumberOf(drawn.action)).size());
      }
      for (const MemoryPoint& memory : rank.memory) most_bytes_ = std::max(most_bytes_, memory.bytes);
    }
  }

  std::string Write() {
    Heading();
    Legend();
    const double top = y_;
    const double rows = kRow * static_cast<double>(drawing_.ranks.size());
    Grid(top, rows);
    for (size_t rank = 0; rank < drawing_.ranks.size(); ++rank) Row(rank, top + kRow * static_cast<double>(rank));
    Transfers(top);
    y_ = top + rows;
    Axis();
    if (most_bytes_ > 0) Memory();
    return fmt::format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
               "font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" font-size=\"12\">\n<rect width=\"{0}\" "
               "height=\"{1}\" "
               "fill=\"#ffffff\"/>\n",
               Pixels(kLeft + kChart + kRight), Pixels(y_ + 12)) +
           body_ + "</svg>\n";
  }

 private:
  double X(double seconds) const { return kLeft + kChart * std::clamp(seconds / end_, 0.0, 1.0); }

  void Text(double x, double y, std::string_view text, std::string_view attributes) {
    body_ += fmt::format("<text x=\"{}\" y=\"{}\" {}>{}</text>\n", Pixels(x), Pixels(y), attributes, Escaped(text));
  }

  void Heading() {
    Text(16, 28, drawing_.title, fmt::format("font-size=\"17\" font-weight=\"bold\" fill=\"{}\"", kText));
    Text(16, 47, drawing_.subtitle, fmt::format("fill=\"{}\"", kMuted));
    y_ = 58;
  }

  // Draws the kinds that occur, with their shares of all ranks' time.
  void Legend() {
    std::map<ActionKind, double> seconds;
    double busy = 0;
    double updates = 0;
    for (const DrawnRank& rank : drawing_.ranks) {
      for (const SimulatedAction& drawn : rank.actions) {
        const double took = drawn.end_seconds - drawn.start_seconds;
        seconds[drawn.action.kind] += took;
        busy += took;
      }
      for (const DrawnSpan& span : rank.updates) updates += span.end_seconds - span.start_seconds;
    }
    const double whole = end_ * static_cast<double>(std::max<size_t>(drawing_.ranks.size(), 1));
    double x = 16;
    // Fonts differ: room for a wide one.
    const auto width_of = [](std::string_view text) { return 34 + 7.1 * static_cast<double>(text.size()); };
    const auto make_room = [&](double width) {
      if (x + width <= kLeft + kChart + kRight) return;
      x = 16;
      y_ += 20;
    };
    const auto entry = [&](std::string_view mark, std::string_view name, double share) {
      const std::string text = share < 0 ? std::string(name) : fmt::format("{} {:.1f} %", name, 100 * share);
      make_room(width_of(text));
      body_ += fmt::format("<g transform=\"translate({} {})\">{}</g>\n", Pixels(x), Pixels(y_), mark);
      Text(x + 18, y_ + 11, text, fmt::format("fill=\"{}\"", kText));
      x += width_of(text);
    };
    const auto square = [](std::string_view fill, std::string_view more = "") {
      return fmt::format("<rect width=\"13\" height=\"13\" rx=\"2\" fill=\"{}\"{}/>", fill, more);
    };
    for (const Kind& kind : kKinds) {
      if (const auto found = seconds.find(kind.kind); found != seconds.end()) {
        entry(square(kind.fills[0]), kind.name, found->second / whole);
      }
    }
    if (updates > 0) entry(square(kUpdateFill), "norm and optimizer", updates / whole);
    entry(square(kIdleFill, " stroke=\"#cfd5dd\""), "idle", std::max(0.0, 1 - (busy + updates) / whole));
    if (ShowsTransfers()) {
      entry("<line y1=\"3\" x2=\"13\" y2=\"10\" stroke=\"#27303c\" stroke-opacity=\"0.7\"/>", "transfer", -1);
    }
    const bool chunks = std::any_of(drawing_.ranks.begin(), drawing_.ranks.end(),
                                    [](const DrawnRank& rank) { return StagesOf(rank).size() > 1; });
    const std::string_view hint =
        chunks ? "numbers: micro-batches; darker: a rank's later stages" : "numbers: micro-batches";
    make_room(width_of(hint));
    Text(x, y_ + 11, hint, fmt::format("font-size=\"11\" fill=\"{}\"", kMuted));
    y_ += 26;
  }

  void Grid(double top, double height) {
    const double step = TickStep(end_);
    for (double at = 0; at <= end_ * (1 + 1e-9); at += step) {
      body_ += fmt::format("<line x1=\"{0}\" x2=\"{0}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#e3e7ec\"/>\n", Pixels(X(at)),
                           Pixels(top - 2), Pixels(top + height + 4));
    }
  }

  void Axis() {
    const double step = TickStep(end_);
    const double in_units = step / unit_.seconds;
    const int decimals = in_units >= 1 ? 0 : static_cast<int>(std::ceil(-std::log10(in_units) - 1e-9));
    for (double at = 0; at <= end_ * (1 + 1e-9); at += step) {
      Text(X(at), y_ + 18, fmt::format("{:.{}f}", at / unit_.seconds, decimals),
           fmt::format("text-anchor=\"middle\" font-size=\"11\" fill=\"{}\"", kMuted));
    }
    Text(kLeft + kChart + 16, y_ + 18, unit_.name, fmt::format("font-size=\"11\" fill=\"{}\"", kMuted));
    y_ += 30;
  }

  void Row(size_t number, double top) {
    const DrawnRank& rank = drawing_.ranks[number];
    const double y = top + (kRow - kBox) / 2;
    Text(kLeft - 10, y + kBox / 2 + 4, fmt::format("rank {}", number),
         fmt::format("text-anchor=\"end\" fill=\"{}\"", kText));
    body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n", Pixels(kLeft), Pixels(y),
                         Pixels(kChart), Pixels(kBox), kIdleFill);
    const std::vector<int32_t> stages = StagesOf(rank);
    double busy = 0;
    for (const SimulatedAction& drawn : rank.actions) {
      busy += drawn.end_seconds - drawn.start_seconds;
      Box(drawn, stages, y);
    }
    for (const DrawnSpan& span : rank.updates) {
      body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n",
                           Pixels(X(span.start_seconds)), Pixels(y),
                           Pixels(X(span.end_seconds) - X(span.start_seconds)), Pixels(kBox), kUpdateFill);
    }
    Text(kLeft + kChart + 10, y + kBox / 2 + 4, fmt::format("{:.0f} % busy", 100 * busy / end_),
         fmt::format("font-size=\"11\" fill=\"{}\"", kMuted));
  }

  void Box(const SimulatedAction& drawn, const std::vector<int32_t>& stages, double y) {
    const Action& action = drawn.action;
    const Kind& kind = KindOf(action);
    const auto chunk =
        static_cast<size_t>(std::lower_bound(stages.begin(), stages.end(), action.stage) - stages.begin());
    const double x = X(drawn.start_seconds);
    const double width = X(drawn.end_seconds) - x;
    const std::string tooltip =
        boxes_ > kMostTooltips
            ? ""
            : fmt::format("<title>{}: {:.4g} to {:.4g} {}</title>", ToString(action),
                          drawn.start_seconds / unit_.seconds, drawn.end_seconds / unit_.seconds, unit_.name);
    // A hair of white between neighbours, but never more than the box.
    const double gap = std::min(0.7, width / 3);
    body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"{}>{}</rect>\n",
                         Pixels(x + gap / 2), Pixels(y), Pixels(width - gap), Pixels(kBox),
                         kind.fills[std::min(chunk, kind.fills.size() - 1)], width > 6 ? " rx=\"1.5\"" : "", tooltip);
    // Room for the kind's longest number: of equal boxes, all have theirs or none.
    if (width < kLeastForDigit + 6.2 * static_cast<double>(digits_.at(action.kind) - 1)) return;
    Text(x + width / 2, y + kBox / 2 + 4, fmt::format("{}", NumberOf(action)),
         fmt::format("text-anchor=\"middle\" font-size=\"11\" fill=\"{}\"", kind.ink));
  }

  bool ShowsTransfers() const { return !drawing_.transfers.empty() && drawing_.transfers.size() <= kMostTransfers; }

  // From the bottom or top edge of the maker's row to the facing edge of the taker's: lines stay out of the boxes
  // between neighbours.
  void Transfers(double top) {
    if (!ShowsTransfers()) return;
    body_ += "<g stroke=\"#27303c\" stroke-opacity=\"0.45\" stroke-width=\"0.8\">\n";
    for (const Transfer& transfer : drawing_.transfers) {
      const bool down = transfer.to_rank > transfer.from_rank;
      const double inset = (kRow - kBox) / 2;
      const double from = top + kRow * transfer.from_rank + (down ? kRow - inset : inset);
      const double to = top + kRow * transfer.to_rank + (down ? inset : kRow - inset);
      body_ += fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n", Pixels(X(transfer.start_seconds)),
                           Pixels(from), Pixels(X(transfer.end_seconds)), Pixels(to));
    }
    body_ += "</g>\n";
  }

  void Memory() {
    y_ += 20;
    Text(16, y_, fmt::format("Memory, each rank up to {}", BytesText(most_bytes_)),
         fmt::format("font-weight=\"bold\" fill=\"{}\"", kText));
    y_ += 8;
    for (size_t number = 0; number < drawing_.ranks.size(); ++number) {
      MemoryRow(number);
      y_ += kMemoryRow;
    }
  }

  void MemoryRow(size_t number) {
    const double bottom = y_ + (kMemoryRow + kMemoryBox) / 2;
    Text(kLeft - 10, bottom - kMemoryBox / 2 + 4, fmt::format("rank {}", number),
         fmt::format("text-anchor=\"end\" fill=\"{}\"", kText));
    std::string line = fmt::format("M{} {}", Pixels(kLeft), Pixels(bottom));
    double peak = 0;
    const std::vector<MemoryPoint>& all = drawing_.ranks[number].memory;
    for (size_t i = 0; i < all.size(); ++i) {
      peak = std::max(peak, all[i].bytes);
      // Skips a point at the same time as the next one, because memory freed and taken at once would draw a notch
      // without width.
      if (i + 1 < all.size() && all[i + 1].seconds <= all[i].seconds) continue;
      line +=
          fmt::format("H{}V{}", Pixels(X(all[i].seconds)), Pixels(bottom - kMemoryBox * all[i].bytes / most_bytes_));
    }
    line += fmt::format("H{}V{}Z", Pixels(kLeft + kChart), Pixels(bottom));
    body_ += fmt::format(
        "<path d=\"{}\" fill=\"#5b9bd5\" fill-opacity=\"0.28\" stroke=\"#2f6fab\" stroke-width=\"1\"/>\n", line);
    Text(kLeft + kChart + 10, bottom - kMemoryBox / 2 + 4, BytesText(peak),
         fmt::format("font-size=\"11\" fill=\"{}\"", kMuted));
  }

  const Drawing& drawing_;
  const double end_;
  const Unit unit_;
  size_t boxes_ = 0;
  std::map<ActionKind, size_t> digits_;  // of the longest number
  double most_bytes_ = 0;
  double y_ = 0;
  std::string body_;
};

}  // namespace

double Drawing::end_seconds() const {
  double end = 0;
  for (const DrawnRank& rank : ranks) {
    for (const SimulatedAction& drawn : rank.actions) end = std::max(end, drawn.end_seconds);
    for (const DrawnSpan& span : rank.updates) end = std::max(end, span.end_seconds);
  }
  return end;
}

Drawing DrawSimulation(const Schedule& schedule, const SimulationCosts& costs, const Simulation& simulation) {
  Drawing drawing;
  std::vector<std::vector<MemoryPoint>> memory = MemoryOverTime(costs, simulation);
  for (size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    drawing.ranks.push_back({.actions = simulation.ranks[rank], .memory = std::move(memory[rank])});
  }
  drawing.transfers = Transfers(schedule, costs, simulation);
  return drawing;
}

std::string ToSvg(const Drawing& drawing) {
  return SvgWriter(drawing).Write();
}

std::string ToChromeTrace(const Drawing& drawing) {
  using Json = nlohmann::ordered_json;
  Json events = Json::array();
  const auto microseconds = [](double seconds) { return std::round(seconds * 1e9) / 1e3; };
  const auto name_of = [&](const char* what, size_t rank, const std::string& name) {
    events.push_back({{"name", what}, {"ph", "M"}, {"pid", 0}, {"tid", rank}, {"args", {{"name", name}}}});
  };
  const auto span = [&](const std::string& name, std::string_view category, size_t rank, double start, double end,
                        const Json& arguments) {
    events.push_back({{"name", name},
                      {"cat", category},
                      {"ph", "X"},
                      {"pid", 0},
                      {"tid", rank},
                      {"ts", microseconds(start)},
                      {"dur", microseconds(end - start)},
                      {"args", arguments}});
  };
  name_of("process_name", 0, drawing.title);
  for (size_t rank = 0; rank < drawing.ranks.size(); ++rank) {
    name_of("thread_name", rank, fmt::format("rank {}", rank));
    for (const SimulatedAction& drawn : drawing.ranks[rank].actions) {
      const Action& action = drawn.action;
      const bool frozen = action.kind == ActionKind::kFrozen;
      Json arguments{{frozen ? "piece" : "stage", frozen ? action.micro_batch : action.stage}};
      if (HasMicroBatch(action.kind)) arguments["micro_batch"] = action.micro_batch;
      span(ToString(action), KindOf(action).name, rank, drawn.start_seconds, drawn.end_seconds, arguments);
    }
    for (const DrawnSpan& update : drawing.ranks[rank].updates) {
      span("norm and optimizer", "update", rank, update.start_seconds, update.end_seconds, Json::object());
    }
    for (const MemoryPoint& memory : drawing.ranks[rank].memory) {
      events.push_back({{"name", fmt::format("memory of rank {}", rank)},
                        {"ph", "C"},
                        {"pid", 0},
                        {"ts", microseconds(memory.seconds)},
                        {"args", {{"bytes", std::round(memory.bytes)}}}});
    }
  }
  for (size_t i = 0; i < drawing.transfers.size(); ++i) {
    const Transfer& transfer = drawing.transfers[i];
    Json flow{{"name", "transfer"}, {"cat", "transfer"}, {"ph", "s"}, {"id", i}, {"pid", 0}};
    flow["tid"] = transfer.from_rank;
    flow["ts"] = microseconds(transfer.start_seconds);
    events.push_back(flow);
    flow["ph"] = "f";
    flow["bp"] = "e";
    flow["tid"] = transfer.to_rank;
    flow["ts"] = microseconds(transfer.end_seconds);
    events.push_back(flow);
  }
  const Json trace{{"displayTimeUnit", "ms"}, {"traceEvents", events}};
  return trace.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace atl::schedule
