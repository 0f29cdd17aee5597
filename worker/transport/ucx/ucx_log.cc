#include "worker/transport/ucx/ucx_log.h"

// The header has no linkage guard of its own.
extern "C" {
#include <ucs/debug/log_def.h>
}

#include <array>
#include <cstdarg>
#include <cstdio>
#include <mutex>

#include "spdlog/spdlog.h"

namespace atl::transport {
namespace {

spdlog::level::level_enum LevelOf(ucs_log_level_t level) {
  if (level <= UCS_LOG_LEVEL_FATAL) return spdlog::level::critical;
  return level <= UCS_LOG_LEVEL_INFO ? spdlog::level::debug : spdlog::level::trace;
}

ucs_log_func_rc_t Log(const char* file, unsigned line, const char* /*function*/, ucs_log_level_t level,
                      const ucs_log_component_config_t* /*component*/, const char* format, va_list arguments) {
  const spdlog::level::level_enum ours = LevelOf(level);
  if (!spdlog::should_log(ours)) return UCS_LOG_FUNC_RC_STOP;
  std::array<char, 512> text;
  std::vsnprintf(text.data(), text.size(), format, arguments);
  spdlog::log(ours, "ucx: {} ({}:{})", text.data(), file, line);
  return UCS_LOG_FUNC_RC_STOP;
}

}  // namespace

void RouteUcxLog() {
  static std::once_flag once;
  std::call_once(once, [] { ucs_log_push_handler(&Log); });
}

}  // namespace atl::transport
