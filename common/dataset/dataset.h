// A dataset: named, immutable Parquet shards and a manifest in the blob store. Partitions of a job have the same form.
//
// Shard schema: image struct<bytes: binary, path: string>, label: int32, sample_id: uint64, then the user's columns
// (list<float>);
// image.bytes is an encoded image (PNG as written by Atoll; JPEG and WebP are read too). Row groups of at most
// kRowGroupRows rows, so that a reader needs little memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/blob_store.h"

namespace atl::dataset {

inline constexpr int kDatasetFormat = 1;
inline constexpr int64_t kRowGroupRows = 1024;

// 8-bit image, [height][width][channels] interleaved.
struct Image {
  int32_t channels = 0;
  int32_t height = 0;
  int32_t width = 0;
  std::vector<uint8_t> pixels;
};

struct Sample {
  // First 64 bits of SHA-256 over the decoded pixels and the label: decides the held-out split and keys randomness.
  uint64_t id = 0;
  int32_t label = -1;
  std::string path;  // the image's origin, for messages
  Image image;
  // Values of the user's columns, in the order given to ShardWriter. A reader leaves it empty: see ReadColumn.
  std::vector<std::vector<float>> columns;
};

// Returns the id of a sample with these pixels and this label.
uint64_t SampleId(const Image& image, int32_t label);
// Returns whether the sample belongs to the held-out split. The split is a function of the id alone, so that equal
// images never lie on both sides, even across imports.
bool IsHeldOut(uint64_t sample_id, double held_out_fraction);

struct Shard {
  std::string uri;
  std::string split;  // "train" or "held_out"
  int64_t rows = 0;
  int64_t bytes = 0;
  std::string sha256;
  bool operator==(const Shard&) const = default;
};

struct Skipped {
  std::string where;
  std::string reason;
  bool operator==(const Skipped&) const = default;
};

struct DatasetManifest {
  int format = kDatasetFormat;
  std::string name;
  int32_t channels = 0;
  int32_t height = 0;
  int32_t width = 0;
  std::vector<std::string> classes;  // by label
  std::vector<std::string> columns;  // besides image, label and sample_id
  double held_out_fraction = 0;
  std::vector<Shard> shards;
  int64_t skipped_count = 0;
  std::vector<Skipped> skipped;  // the first 100
  std::string source;            // the imported source, for people

  int64_t rows(std::string_view split) const;
  bool operator==(const DatasetManifest&) const = default;
};

// Returns "<root>/datasets/<name>/manifest.json".
std::string DatasetManifestUri(const storage::BlobStore& store, std::string_view name);

std::string ToJson(const DatasetManifest& manifest);
// DATA_LOSS names `file_name` if the text is no manifest; FAILED_PRECONDITION for a format that this build does not
// read.
absl::StatusOr<DatasetManifest> ParseDatasetManifest(std::string_view json, std::string_view file_name);
absl::StatusOr<DatasetManifest> ReadDatasetManifest(storage::BlobStore* store, std::string_view manifest_uri);

// Returns the shards of one split, in the manifest's order.
std::vector<Shard> ShardsOf(const DatasetManifest& manifest, std::string_view split);

// Rows of a list of shards (one split of a dataset, or one partition) by position, 0 .. size - 1, in shard order.
// Holds a few row groups and open files. Files are verified against their hash when first read. Not thread-safe; may
// block on the store.
class SampleReader {
 public:
  // NOT_FOUND names a missing shard. DATA_LOSS, here or from Read, names a damaged shard.
  static absl::StatusOr<std::unique_ptr<SampleReader>> Open(storage::BlobStore* store, std::vector<Shard> shards,
                                                            int64_t cached_row_groups = 64);
  virtual ~SampleReader() = default;
  virtual int64_t size() const = 0;
  // OUT_OF_RANGE outside 0 .. size - 1.
  virtual absl::StatusOr<Sample> Read(int64_t position) = 0;
  // Returns the value of a numeric or list-of-number column at `position`, as floats. NOT_FOUND lists the existing
  // columns.
  virtual absl::StatusOr<std::vector<float>> ReadColumn(int64_t position, std::string_view column) = 0;
};

// Writes one shard: rows in the order of Add. Without Finish it leaves no file. Equal rows give equal bytes.
class ShardWriter {
 public:
  // Every sample carries a value for each of `columns`.
  static absl::StatusOr<std::unique_ptr<ShardWriter>> Create(storage::BlobStore* store, std::string uri,
                                                             std::string split, std::vector<std::string> columns = {});
  virtual ~ShardWriter() = default;
  virtual absl::Status Add(const Sample& sample) = 0;
  virtual absl::StatusOr<Shard> Finish() = 0;
};

// The order in which samples are consumed: epoch after epoch, each a permutation of 0 .. n - 1 that depends on (seed,
// epoch) only. Constant memory (a Feistel network over the positions). The cursor is the number of samples consumed.
class ShuffledOrder {
 public:
  // 1 <= n.
  ShuffledOrder(uint64_t seed, int64_t n);
  // Returns the position in the data of the `cursor`-th sample consumed.
  int64_t At(int64_t cursor) const;

 private:
  uint64_t seed_;
  int64_t n_;
  int half_bits_;
};

}  // namespace atl::dataset
