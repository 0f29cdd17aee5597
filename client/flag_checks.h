// Checks of flags' values, with messages that say what is expected instead of the limits of a type.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>

#include "CLI/CLI.hpp"

namespace atl::client {

// A finite number of at least 0.
inline CLI::Validator NotNegative() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        double value = 0;
        const bool good = CLI::detail::lexical_cast(text, value) && std::isfinite(value) && value >= 0;
        return good ? "" : "expected a number of at least 0, found " + text;
      },
      "");
}

// A whole number from 1 to 2^63 - 1.
inline CLI::Validator WholeAndPositive() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        int64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool good = error == std::errc() && end == text.data() + text.size() && value > 0;
        return good ? "" : "expected a whole number of at least 1, found " + text;
      },
      "");
}

}  // namespace atl::client
