// Amounts of memory as flags give them.
#pragma once

#include <string>

#include "CLI/CLI.hpp"
#include "fmt/format.h"

namespace atl {

// Turns 800MB (of 1000 kB) or 20GiB (of 1024 MiB) into bytes.
inline CLI::Validator ByteSize() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        std::string bytes = text;
        bool good = text.find('-') == std::string::npos;
        try {
          good = good && CLI::AsSizeValue(/*kb_is_1000=*/true)(bytes).empty();
        } catch (const CLI::Error&) {
          good = false;
        }
        if (!good) return fmt::format("expected a size such as 800MB or 20GiB, found {}", text);
        text = bytes;
        return "";
      },
      "SIZE");
}

}  // namespace atl
