// Parquet files in the layout of Hugging Face, and Atoll's own shards, which have the same.
#include <cstdint>

#include "arrow/buffer.h"
#include "arrow/io/memory.h"
#include "tests/fuzz/drain_source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace atl::dataset;
  const auto buffer = std::make_shared<arrow::Buffer>(data, static_cast<int64_t>(size));
  DrainSource(MakeParquetSource({{"fuzz.parquet", std::make_shared<arrow::io::BufferReader>(buffer)}}, {}));
  return 0;
}
