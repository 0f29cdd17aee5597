// Entry point of `atoll`.
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>

#include "client/commands/app.h"
#include "common/base/log.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace {

int TerminalWidth(const std::string& columns) {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const int given = std::atoi(columns.c_str());
  return given > 0 ? given : 80;
}

}  // namespace

int main(int argc, char** argv) {
  setenv("GRPC_VERBOSITY", "NONE", 0);  // errors are reported once, as ours
  std::signal(SIGPIPE, SIG_IGN);        // `atoll … | head` ends well, and `up` stops what it started
  atl::log::EscapeTexts();
  spdlog::set_default_logger(spdlog::stderr_logger_mt("atoll"));
  spdlog::set_level(spdlog::level::warn);
  atl::client::Session session;
  session.out = &std::cout;
  session.err = &std::cerr;
  session.env = [](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return std::string(value == nullptr ? "" : value);
  };
  session.reader_gone = [] {
    pollfd pipe{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
    return poll(&pipe, 1, 0) == 1 && (pipe.revents & POLLERR) != 0;
  };
  session.terminal = isatty(STDOUT_FILENO) == 1 && session.env("TERM") != "dumb";
  session.width = session.terminal ? TerminalWidth(session.env("COLUMNS")) : 0;
  session.colour = session.terminal && session.env("NO_COLOR").empty();
  return atl::client::RunAtoll({argv + 1, argv + argc}, std::move(session));
}
