// The log of a process (spdlog): one line per message.
#pragma once

namespace atl::log {

// From now on every line of the log is one message: control characters of texts that callers sent are written as
// escapes (OneLine), so that nobody makes a line of his own or moves the cursor of who reads it. Call it once, at the
// start of main, before loggers are made; those get it as well.
void EscapeTexts();

}  // namespace atl::log
