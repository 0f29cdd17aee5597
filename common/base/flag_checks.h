// Checks of flag values for CLI11; their messages name the expected and the found value. CLI11's own checks accept NaN,
// read 010 as eight, truncate numbers that do not fit, and print limits of a type with 309 digits.
#pragma once

#include <charconv>
#include <cmath>
#include <limits>
#include <string>

#include "CLI/CLI.hpp"
#include "fmt/format.h"

namespace atl {

// Accepts a whole number in decimal digits from `least` to `most`; T is the flag's type.
template <typename T>
CLI::Validator WholeNumber(T least, T most = std::numeric_limits<T>::max()) {
  return CLI::Validator(
      [least, most](const std::string& text) -> std::string {
        T value{};
        const char* const end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, value);
        const bool padded = text.size() > 1 && text[text[0] == '-'] == '0';
        if (error == std::errc() && stop == end && !padded && value >= least && value <= most) return "";
        return fmt::format("expected a whole number from {} to {}, found {}", least, most, text);
      },
      most == std::numeric_limits<T>::max() ? fmt::format("of at least {}", least)
                                            : fmt::format("from {} to {}", least, most));
}

namespace internal {

inline CLI::Validator FiniteNumber(double least, bool open, double most, const std::string& range) {
  return CLI::Validator(
      [=](const std::string& text) -> std::string {
        double value = 0;
        const bool finite = CLI::detail::lexical_cast(text, value) && std::isfinite(value);
        if (finite && (open ? value > least : value >= least) && value <= most) return "";
        return fmt::format("expected a number {}, found {}", range, text);
      },
      range);
}

}  // namespace internal

// Accepts a finite number in [least, most].
inline CLI::Validator Number(double least, double most = std::numeric_limits<double>::infinity()) {
  return internal::FiniteNumber(
      least, /*open=*/false, most,
      std::isinf(most) ? fmt::format("of at least {}", least) : fmt::format("from {} to {}", least, most));
}

// Accepts a finite number in (0, most].
inline CLI::Validator PositiveNumber(double most = std::numeric_limits<double>::infinity()) {
  return internal::FiniteNumber(0, /*open=*/true, most,
                                std::isinf(most) ? "above 0" : fmt::format("above 0 and at most {}", most));
}

}  // namespace atl
