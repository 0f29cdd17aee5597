// Letters of five by seven dots, printable ASCII.
#pragma once

#include <cstdint>

namespace atl::dataset {

inline constexpr int32_t kGlyphWidth = 5;
inline constexpr int32_t kGlyphHeight = 7;

// Returns five columns from left to right; bit 0 is the top dot. A box for characters that are not printable ASCII.
const uint8_t* GlyphColumns(char c);

}  // namespace atl::dataset
