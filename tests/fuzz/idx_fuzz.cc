// IDX images and labels: four bytes say how long the images file is, the labels file follows it.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "tests/fuzz/drain_source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace atl::dataset;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  uint32_t length = 0;
  if (rest.size() < sizeof(length)) return 0;
  std::memcpy(&length, rest.data(), sizeof(length));
  rest.remove_prefix(sizeof(length));
  const std::string_view images = rest.substr(0, std::min<size_t>(length, rest.size()));
  const std::string_view labels = rest.substr(images.size());
  DrainSource(MakeIdxSource(OpenInputMemory(images), "images", OpenInputMemory(labels), "labels"));
  return 0;
}
