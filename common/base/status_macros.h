// Early returns for absl::Status and absl::StatusOr.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the enclosing function when `expr`, an absl::Status, is not OK.
#define ATOLL_RETURN_IF_ERROR(expr)                          \
  do {                                                       \
    if (absl::Status atoll_status_ = (expr); !atoll_status_.ok()) return atoll_status_; \
  } while (false)

#define ATOLL_CONCAT_INNER_(a, b) a##b
#define ATOLL_CONCAT_(a, b) ATOLL_CONCAT_INNER_(a, b)

// `ATOLL_ASSIGN_OR_RETURN(auto x, F())`: assigns the value, or returns the error.
#define ATOLL_ASSIGN_OR_RETURN(lhs, expr) \
  ATOLL_ASSIGN_OR_RETURN_IMPL_(ATOLL_CONCAT_(atoll_statusor_, __LINE__), lhs, expr)
#define ATOLL_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, expr) \
  auto statusor = (expr);                                 \
  if (!statusor.ok()) return std::move(statusor).status();  \
  lhs = std::move(statusor).value()
