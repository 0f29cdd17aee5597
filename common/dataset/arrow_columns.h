// Reads values from Arrow arrays of several types, and turns exceptions of Arrow and Parquet into statuses.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "arrow/array/array_base.h"
#include "arrow/memory_pool.h"
#include "arrow/table.h"

namespace atl::dataset {

// Returns element `i` of a numeric column as one float, or of a column of number lists as several. INVALID_ARGUMENT
// names the type if it is neither, or if the value is absent.
absl::StatusOr<std::vector<float>> FloatsAt(const arrow::Array& array, int64_t i);
// INVALID_ARGUMENT unless the column holds integers and the value is present.
absl::StatusOr<int64_t> IntegerAt(const arrow::Array& array, int64_t i);
// Returns a value of a string or binary column, borrowed from the array.
absl::StatusOr<std::string_view> BytesAt(const arrow::Array& array, int64_t i);

bool HoldsIntegers(const arrow::DataType& type);
bool HoldsBytes(const arrow::DataType& type);
bool HoldsFloats(const arrow::DataType& type);

// Returns a column of a table as one array, checked to be well formed.
absl::StatusOr<std::shared_ptr<arrow::Array>> WholeColumn(const arrow::Table& table, const std::string& name,
                                                          std::string_view where);

// A memory pool limited to `limit` bytes at once: a small Parquet file may claim to hold a lot. Thread-safe.
class LimitedPool : public arrow::MemoryPool {
 public:
  explicit LimitedPool(int64_t limit) : pool_(arrow::default_memory_pool()), limit_(limit) {}

  using arrow::MemoryPool::Allocate;
  using arrow::MemoryPool::Free;
  using arrow::MemoryPool::Reallocate;
  arrow::Status Allocate(int64_t size, int64_t alignment, uint8_t** out) override;
  arrow::Status Reallocate(int64_t old_size, int64_t new_size, int64_t alignment, uint8_t** pointer) override;
  void Free(uint8_t* buffer, int64_t size, int64_t alignment) override;
  int64_t bytes_allocated() const override { return stats_.bytes_allocated(); }
  int64_t max_memory() const override { return stats_.max_memory(); }
  int64_t total_bytes_allocated() const override { return stats_.total_bytes_allocated(); }
  int64_t num_allocations() const override { return stats_.num_allocations(); }
  std::string backend_name() const override { return pool_->backend_name(); }

 private:
  arrow::Status Check(int64_t more) const;

  arrow::MemoryPool* const pool_;
  const int64_t limit_;
  arrow::internal::MemoryPoolStats stats_;
};

absl::Status ThrownError(std::string_view where, const std::exception& thrown);

// Returns the result of `work`, or DATA_LOSS naming `where` if Arrow or Parquet throws.
template <typename F>
auto WithoutExceptions(std::string_view where, F work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& thrown) {
    return ThrownError(where, thrown);
  }
}

}  // namespace atl::dataset
