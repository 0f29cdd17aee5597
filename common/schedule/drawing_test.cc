#include "common/schedule/drawing.h"

#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace atl::schedule {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kOneFOneB[] = "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1B0,1F1,1B1\n";

Drawing Draw(const std::string& text, const SimulationCosts& costs) {
  const auto schedule = ParseText(text);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  const auto simulation = Simulate(*schedule, costs);
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  return DrawSimulation(*schedule, costs, *simulation);
}

SimulationCosts TwoStages() {
  SimulationCosts costs;
  costs.stages = {{.activation_bytes = 1 << 20, .weight_gradient_bytes = 1 << 18},
                  {.activation_bytes = 1 << 21, .weight_gradient_bytes = 1 << 18}};
  costs.transfer_seconds = 0.25;
  return costs;
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

// Every element closed by its own name, attributes quoted, no character that XML forbids.
bool IsWellFormed(const std::string& text) {
  std::vector<std::string> open;
  for (size_t at = text.find('<'); at != std::string::npos; at = text.find('<', at)) {
    const size_t end = text.find('>', at);
    if (end == std::string::npos) return false;
    const std::string tag = text.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" /"));
    at = end;
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
    } else if (tag.back() != '/') {
      if (Count(tag, "\"") % 2 != 0) return false;
      open.push_back(name);
    }
  }
  return open.empty() &&
         Count(text, "&") == Count(text, "&amp;") + Count(text, "&lt;") + Count(text, "&gt;") + Count(text, "&quot;");
}

TEST(DrawingTest, ASimulationBecomesBoxesTransfersAndMemory) {
  const SimulationCosts costs = TwoStages();
  const auto simulation = Simulate(*ParseText(kOneFOneB), costs);
  const Drawing drawing = Draw(kOneFOneB, costs);
  ASSERT_EQ(drawing.ranks.size(), 2u);
  EXPECT_EQ(drawing.ranks[0].actions.size(), 6u);
  EXPECT_EQ(drawing.ranks[1].actions.size(), 4u);
  EXPECT_DOUBLE_EQ(drawing.end_seconds(), simulation->makespan_seconds);
  // Two forwards down, two gradients back; each takes one hop.
  ASSERT_EQ(drawing.transfers.size(), 4u);
  for (const Transfer& transfer : drawing.transfers) {
    EXPECT_EQ(transfer.from_rank + transfer.to_rank, 1);
    EXPECT_DOUBLE_EQ(transfer.end_seconds - transfer.start_seconds, 0.25);
  }
}

TEST(DrawingTest, ForwardsOfSelfConditioningHaveAColourOfTheirOwn) {
  const SimulationCosts costs = TwoStages();
  const std::string svg = ToSvg(Draw("0C0,0F0,0B0\n1C0,1F0,1B0\n", costs));
  EXPECT_TRUE(IsWellFormed(svg));
  EXPECT_THAT(svg, HasSubstr("C self-conditioning"));
  EXPECT_THAT(svg, HasSubstr("<title>1C0: "));
  EXPECT_THAT(ToSvg(Draw(kOneFOneB, costs)), Not(HasSubstr("C self-conditioning")));
  EXPECT_THAT(ToChromeTrace(Draw("0C0,0F0,0B0\n1C0,1F0,1B0\n", costs)), HasSubstr(R"("name":"1C0")"));
}

// The picture's memory and the simulator's peak are one count, whatever ran: fixed, kept, transient, frozen.
TEST(DrawingTest, MemoryPeaksWhereTheSimulatorSays) {
  SimulationCosts costs = TwoStages();
  const auto simulation = Simulate(*ParseText(kOneFOneB), costs);
  ASSERT_TRUE(simulation.ok());
  const Drawing drawing = Draw(kOneFOneB, costs);
  for (size_t rank = 0; rank < 2; ++rank) {
    double peak = 0;
    for (const MemoryPoint& memory : drawing.ranks[rank].memory) peak = std::max(peak, memory.bytes);
    EXPECT_DOUBLE_EQ(peak, simulation->peak_activation_bytes[rank]) << rank;
    EXPECT_DOUBLE_EQ(drawing.ranks[rank].memory.back().bytes, 0) << "all is freed in the end";
  }
}

TEST(DrawingTest, SvgShowsEveryRankActionAndKind) {
  Drawing drawing = Draw(kOneFOneB, TwoStages());
  drawing.title = "a <b> & \"c\"";
  drawing.subtitle = "line\nbreak";
  const std::string svg = ToSvg(drawing);
  EXPECT_TRUE(IsWellFormed(svg)) << svg;
  EXPECT_THAT(svg, HasSubstr("a &lt;b&gt; &amp; &quot;c&quot;"));
  EXPECT_THAT(svg, HasSubstr("<title>0I1: "));
  EXPECT_EQ(Count(svg, "<title>"), 10u);
  EXPECT_EQ(Count(svg, ">rank 1</text>"), 2u) << "a row of time and one of memory";
  for (const char* entry : {"F forward", "I input gradient", "W weight gradient", "B both gradients", ">idle ",
                            ">transfer<", "Memory, each rank up to 2.0 MiB", ">s</text>"}) {
    EXPECT_THAT(svg, HasSubstr(entry));
  }
  EXPECT_THAT(svg, Not(HasSubstr("E frozen layers")));
  EXPECT_THAT(svg, Not(HasSubstr("norm and optimizer")));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(DrawingTest, SharesOfTheLegendAddUp) {
  Drawing drawing;
  drawing.ranks = {
      {.actions = {{{ActionKind::kForward, 0, 0}, 0, 0.004}}, .updates = {{0.008, 0.010}}},
      {.actions = {{{ActionKind::kFrozen, 0, 3}, 0.002, 0.008}, {{ActionKind::kReduce, 1, 0}, 0.008, 0.009}}}};
  const std::string svg = ToSvg(drawing);
  EXPECT_TRUE(IsWellFormed(svg));
  EXPECT_THAT(svg, HasSubstr("F forward 20.0 %"));
  EXPECT_THAT(svg, HasSubstr("E frozen layers 30.0 %"));
  EXPECT_THAT(svg, HasSubstr("R reduction 5.0 %"));
  EXPECT_THAT(svg, HasSubstr("norm and optimizer 10.0 %"));
  EXPECT_THAT(svg, HasSubstr("idle 35.0 %"));
  EXPECT_THAT(svg, HasSubstr(">ms</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("Memory"))) << "nothing is known of it";
}

TEST(DrawingTest, OfEqualBoxesAllHaveTheirNumberOrNone) {
  for (const int32_t boxes : {20, 60, 72, 80, 200}) {
    Drawing drawing;
    DrawnRank rank;
    for (int32_t i = 0; i < boxes; ++i) rank.actions.push_back({{ActionKind::kForward, 0, i}, 0.1 * i, 0.1 * (i + 1)});
    drawing.ranks.push_back(rank);
    const size_t numbers = Count(ToSvg(drawing), "font-size=\"11\" fill=\"#ffffff\"");
    EXPECT_EQ(numbers, boxes < 60 ? static_cast<size_t>(boxes) : numbers);
    EXPECT_TRUE(numbers == 0 || numbers == static_cast<size_t>(boxes)) << numbers << " of " << boxes;
  }
}

TEST(DrawingTest, AnEmptyDrawingIsAPictureToo) {
  EXPECT_TRUE(IsWellFormed(ToSvg({})));
  EXPECT_NO_THROW(nlohmann::json::parse(ToChromeTrace({})));
}

TEST(DrawingTest, ChromeTraceHasAThreadPerRankInMicroseconds) {
  Drawing drawing = Draw(kOneFOneB, TwoStages());
  drawing.title = "a \"quoted\" \\ title";
  drawing.ranks[1].updates = {{7, 7.5}};
  const auto json = nlohmann::json::parse(ToChromeTrace(drawing));
  std::map<std::string, int> phases;
  for (const auto& event : json.at("traceEvents")) ++phases[event.at("ph").get<std::string>()];
  EXPECT_EQ(phases["X"], 11);
  EXPECT_EQ(phases["s"], 4);
  EXPECT_EQ(phases["f"], 4);
  EXPECT_EQ(phases["M"], 3);
  EXPECT_GT(phases["C"], 0);
  EXPECT_EQ(json.at("traceEvents")[0].at("args").at("name"), "a \"quoted\" \\ title");
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("name") == "1F0") {
      EXPECT_EQ(event.at("tid"), 1);
      EXPECT_DOUBLE_EQ(event.at("ts").get<double>(), 1.25e6);
      EXPECT_DOUBLE_EQ(event.at("dur").get<double>(), 1e6);
      EXPECT_EQ(event.at("args").at("micro_batch"), 0);
    }
  }
}

}  // namespace
}  // namespace atl::schedule
