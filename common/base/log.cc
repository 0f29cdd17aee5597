#include "common/base/log.h"

#include <memory>
#include <string>
#include <string_view>

#include "common/base/one_line.h"
#include "spdlog/formatter.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/spdlog.h"

namespace atl::log {
namespace {

class OneLineFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) override {
    const std::string text = OneLine(std::string_view(message.payload.data(), message.payload.size()));
    spdlog::details::log_msg shown = message;
    shown.payload = text;
    inner_.format(shown, line);
    // Sinks that colour the level read where it is from the message they gave.
    message.color_range_start = shown.color_range_start;
    message.color_range_end = shown.color_range_end;
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<OneLineFormatter>(); }

 private:
  spdlog::pattern_formatter inner_;
};

}  // namespace

void EscapeTexts() {
  spdlog::set_formatter(std::make_unique<OneLineFormatter>());
}

}  // namespace atl::log
