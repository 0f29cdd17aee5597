// For tests: images with known pixels, samples and shards of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/dataset/dataset.h"
#include "common/storage/blob_store.h"

namespace atl::dataset {

// Returns pixels that differ by position and by `seed`.
inline Image PatternImage(int32_t channels, int32_t height, int32_t width, uint32_t seed) {
  Image image{.channels = channels, .height = height, .width = width};
  uint32_t state = seed * 2654435761U + 1;
  for (int64_t i = 0; i < int64_t{channels} * height * width; ++i) {
    state = state * 1664525U + 1013904223U;
    image.pixels.push_back(static_cast<uint8_t>(state >> 24));
  }
  return image;
}

inline Sample PatternSample(int32_t label, uint32_t seed, int32_t channels = 1, int32_t side = 8) {
  Sample sample{.label = label, .path = "pattern-" + std::to_string(seed)};
  sample.image = PatternImage(channels, side, side, seed);
  sample.id = SampleId(sample.image, label);
  return sample;
}

// Writes a shard of `rows` pattern samples, seeds from `first_seed`, labels seed mod 10.
inline Shard WritePatternShard(storage::BlobStore* store, const std::string& name, int64_t rows,
                               uint32_t first_seed = 0, const std::string& split = "train") {
  auto writer = ShardWriter::Create(store, store->UriOf(name), split).value();
  for (uint32_t i = 0; i < rows; ++i) {
    if (!writer->Add(PatternSample(static_cast<int32_t>((first_seed + i) % 10), first_seed + i)).ok()) std::abort();
  }
  return writer->Finish().value();
}

}  // namespace atl::dataset
