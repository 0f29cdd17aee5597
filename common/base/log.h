// The log of a process (spdlog): one line per message.
#pragma once

namespace atl::log {

// Makes every line of the log one message: control characters in texts from callers are escaped (OneLine), so that a
// caller can neither forge a line nor move a reader's cursor. Call it once, at the start of main, before loggers are
// made; later loggers inherit it.
void EscapeTexts();

}  // namespace atl::log
