// The safetensors format: u64 header length (little endian), JSON header, data; as the reference writer lays it out
// (header padded to 8 bytes, tensors by descending dtype size, then name). Knows nothing of LibTorch: tensors are
// dtype, shape and bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace atl::storage {

struct TensorView {
  std::string name;
  std::string dtype;  // "F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL"
  std::vector<int64_t> shape;
  std::string_view bytes;  // row-major, little endian; borrowed
};

// Returns the file's bytes. INVALID_ARGUMENT for a repeated name, an unknown dtype, or bytes that do not fit the shape.
absl::StatusOr<std::string> SerializeSafetensors(std::vector<TensorView> tensors,
                                                 const std::map<std::string, std::string>& metadata);

// A parsed file. Views point into the bytes that were parsed.
struct Safetensors {
  std::vector<TensorView> tensors;  // in file order
  std::map<std::string, std::string> metadata;

  // NOT_FOUND lists the names that exist.
  absl::StatusOr<TensorView> Find(std::string_view name) const;
};

// DATA_LOSS names `file_name`, the expected and the found: a header longer than the file or than 100 MB, invalid JSON,
// repeated names, offsets with holes, overlaps or beyond the end, a shape that does not fit. INVALID_ARGUMENT for a
// dtype that Atoll does not know.
absl::StatusOr<Safetensors> ParseSafetensors(std::string_view bytes, std::string_view file_name);

}  // namespace atl::storage
