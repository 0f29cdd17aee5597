#include "common/base/log.h"

#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"

namespace atl::log {
namespace {

using ::testing::EndsWith;
using ::testing::MatchesRegex;

class LogTest : public ::testing::Test {
 protected:
  ~LogTest() override {
    spdlog::drop("coordinator");
    spdlog::set_formatter(std::make_unique<spdlog::pattern_formatter>());
  }

  // A logger as programs make theirs.
  void Make() {
    const auto logger =
        std::make_shared<spdlog::logger>("coordinator", std::make_shared<spdlog::sinks::ostream_sink_st>(lines_));
    spdlog::initialize_logger(logger);
  }
  std::string Logged(const std::string& text) {
    lines_.str("");
    spdlog::get("coordinator")->info("job j1 is cancelled: {}", text);
    return lines_.str();
  }

  std::ostringstream lines_;
};

constexpr char kForged[] = "x\n[2026-11-22 12:00:00.000] [coordinator] [error] FAKE\x1b[31m\r\t\xc2\x9b";
constexpr char kShown[] =
    "[coordinator] [info] job j1 is cancelled: "
    "x\\n[2026-11-22 12:00:00.000] [coordinator] [error] FAKE\\x1b[31m\\r\\t\\xc2\\x9b\n";

TEST_F(LogTest, ATextOfACallerMakesNoLineOfItsOwn) {
  EscapeTexts();
  Make();
  EXPECT_THAT(Logged(kForged), EndsWith(kShown));
  EXPECT_THAT(Logged("Größe"), MatchesRegex("\\[[-0-9]* [:.0-9]*\\] \\[coordinator\\] \\[info\\] [^\n]*: Größe\n"));
}

TEST_F(LogTest, LoggersThatExistAreChangedToo) {
  Make();
  EXPECT_THAT(Logged("a\nb"), EndsWith("a\nb\n")) << "else this test shows nothing";
  EscapeTexts();
  EXPECT_THAT(Logged(kForged), EndsWith(kShown));
}

}  // namespace
}  // namespace atl::log
