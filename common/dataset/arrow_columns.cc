#include "common/dataset/arrow_columns.h"

#include "arrow/array/array_binary.h"
#include "arrow/array/array_nested.h"
#include "arrow/array/array_primitive.h"
#include "arrow/array/concatenate.h"
#include "arrow/array/util.h"
#include "arrow/chunked_array.h"
#include "arrow/type.h"
#include "arrow/type_traits.h"
#include "arrow/util/float16.h"
#include "arrow/visit_array_inline.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/storage/arrow_status.h"
#include "fmt/format.h"

namespace atl::dataset {
namespace {

absl::Status WrongType(const arrow::Array& array, std::string_view expected) {
  return MakeError(absl::StatusCode::kInvalidArgument, "COLUMN_TYPE",
                   fmt::format("expected {}, found {}", expected, array.type()->ToString()));
}

absl::Status Absent(std::string_view expected) {
  return MakeError(absl::StatusCode::kInvalidArgument, "VALUE_ABSENT",
                   fmt::format("expected {}, found no value", expected));
}

// Reads element `i` of a numeric column; an error for other columns.
struct NumberReader {
  template <typename ArrayType>
  arrow::Status Visit(const ArrayType& array) {
    using Type = typename ArrayType::TypeClass;
    if constexpr (std::is_same_v<Type, arrow::HalfFloatType>) {
      number = arrow::util::Float16::FromBits(array.Value(i)).ToFloat();
    } else if constexpr (arrow::is_number_type<Type>::value || arrow::is_boolean_type<Type>::value) {
      number = static_cast<double>(array.Value(i));
    } else {
      return arrow::Status::TypeError("no number");
    }
    return arrow::Status::OK();
  }

  int64_t i;
  double number = 0;
};

// False when the column is not numeric.
bool NumberAt(const arrow::Array& array, int64_t i, double* out) {
  NumberReader reader{.i = i};
  const bool numeric = arrow::VisitArrayInline(array, &reader).ok();
  *out = reader.number;
  return numeric;
}

template <typename ListType>
absl::StatusOr<std::vector<float>> ListAt(const ListType& list, int64_t i) {
  std::vector<float> floats;
  const arrow::Array& values = *list.values();
  for (int64_t j = list.value_offset(i); j < list.value_offset(i) + list.value_length(i); ++j) {
    if (values.IsNull(j)) return Absent("numbers in the list");
    double number = 0;
    if (!NumberAt(values, j, &number)) return WrongType(list, "a list of numbers");
    floats.push_back(static_cast<float>(number));
  }
  return floats;
}

}  // namespace

bool HoldsIntegers(const arrow::DataType& type) {
  return arrow::is_integer(type.id());
}

bool HoldsBytes(const arrow::DataType& type) {
  return arrow::is_base_binary_like(type.id());
}

bool HoldsFloats(const arrow::DataType& type) {
  const auto number = [](arrow::Type::type id) {
    return arrow::is_integer(id) || arrow::is_floating(id) || id == arrow::Type::BOOL;
  };
  if (number(type.id())) return true;
  const bool list = type.id() == arrow::Type::LIST || type.id() == arrow::Type::LARGE_LIST ||
                    type.id() == arrow::Type::FIXED_SIZE_LIST;
  return list && number(type.field(0)->type()->id());
}

absl::StatusOr<std::vector<float>> FloatsAt(const arrow::Array& array, int64_t i) {
  if (array.IsNull(i)) return Absent("a number or a list of numbers");
  double number = 0;
  if (NumberAt(array, i, &number)) return std::vector<float>{static_cast<float>(number)};
  switch (array.type_id()) {
    case arrow::Type::LIST:
      return ListAt(static_cast<const arrow::ListArray&>(array), i);
    case arrow::Type::LARGE_LIST:
      return ListAt(static_cast<const arrow::LargeListArray&>(array), i);
    case arrow::Type::FIXED_SIZE_LIST:
      return ListAt(static_cast<const arrow::FixedSizeListArray&>(array), i);
    default:
      return WrongType(array, "a number or a list of numbers");
  }
}

absl::StatusOr<int64_t> IntegerAt(const arrow::Array& array, int64_t i) {
  if (array.IsNull(i)) return Absent("an integer");
  switch (array.type_id()) {
    case arrow::Type::INT64:
      return static_cast<const arrow::Int64Array&>(array).Value(i);
    case arrow::Type::UINT64: {
      const uint64_t value = static_cast<const arrow::UInt64Array&>(array).Value(i);
      if (value <= static_cast<uint64_t>(INT64_MAX)) return static_cast<int64_t>(value);
      return MakeError(absl::StatusCode::kInvalidArgument, "VALUE_TOO_LARGE",
                       fmt::format("expected an integer below 2^63, found {}", value));
    }
    default:
      break;
  }
  double number = 0;
  // Narrower integers are exact in a double.
  if (!HoldsIntegers(*array.type()) || !NumberAt(array, i, &number)) return WrongType(array, "integers");
  return static_cast<int64_t>(number);
}

absl::StatusOr<std::string_view> BytesAt(const arrow::Array& array, int64_t i) {
  if (array.IsNull(i)) return Absent("bytes");
  switch (array.type_id()) {
    case arrow::Type::BINARY:
    case arrow::Type::STRING:
      return static_cast<const arrow::BinaryArray&>(array).GetView(i);
    case arrow::Type::LARGE_BINARY:
    case arrow::Type::LARGE_STRING:
      return static_cast<const arrow::LargeBinaryArray&>(array).GetView(i);
    default:
      return WrongType(array, "bytes or a string");
  }
}

absl::StatusOr<std::shared_ptr<arrow::Array>> WholeColumn(const arrow::Table& table, const std::string& name,
                                                          std::string_view where) {
  const std::shared_ptr<arrow::ChunkedArray> column = table.GetColumnByName(name);
  if (column == nullptr) {
    return MakeError(absl::StatusCode::kDataLoss, "COLUMN_NOT_FOUND",
                     fmt::format("{}: column '{}': expected once, found none or several", where, name));
  }
  const std::string what = fmt::format("{}: column '{}'", where, name);
  std::shared_ptr<arrow::Array> whole;
  if (column->num_chunks() == 1) {
    whole = column->chunk(0);
  } else if (column->num_chunks() == 0) {
    ATOLL_ASSIGN_OR_RETURN_ARROW(whole, arrow::MakeEmptyArray(column->type()), what);
  } else {
    ATOLL_ASSIGN_OR_RETURN_ARROW(whole, arrow::Concatenate(column->chunks()), what);
  }
  ATOLL_RETURN_IF_ARROW_ERROR(whole->ValidateFull(), what);
  return whole;
}

arrow::Status LimitedPool::Check(int64_t more) const {
  if (stats_.bytes_allocated() + more <= limit_) return arrow::Status::OK();
  return arrow::Status::OutOfMemory("expected to need at most ", limit_, " bytes, found need of ", more, " more");
}

arrow::Status LimitedPool::Allocate(int64_t size, int64_t alignment, uint8_t** out) {
  ARROW_RETURN_NOT_OK(Check(size));
  ARROW_RETURN_NOT_OK(pool_->Allocate(size, alignment, out));
  stats_.DidAllocateBytes(size);
  return arrow::Status::OK();
}

arrow::Status LimitedPool::Reallocate(int64_t old_size, int64_t new_size, int64_t alignment, uint8_t** pointer) {
  ARROW_RETURN_NOT_OK(Check(new_size - old_size));
  ARROW_RETURN_NOT_OK(pool_->Reallocate(old_size, new_size, alignment, pointer));
  stats_.DidReallocateBytes(old_size, new_size);
  return arrow::Status::OK();
}

void LimitedPool::Free(uint8_t* buffer, int64_t size, int64_t alignment) {
  pool_->Free(buffer, size, alignment);
  stats_.DidFreeBytes(size);
}

absl::Status ThrownError(std::string_view where, const std::exception& thrown) {
  return MakeError(absl::StatusCode::kDataLoss, "FILE_MALFORMED", fmt::format("{}: {}", where, thrown.what()));
}

}  // namespace atl::dataset
