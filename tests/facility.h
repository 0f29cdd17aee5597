// Names the programs, privileges and servers that a test needs of the machine.
#pragma once

#include "gtest/gtest.h"

// Skips the case when `there` is false; tests/test_main.cc makes that a failure if CI is set, because CI has
// everything. `what` says what is missing and how to get it: "a PostgreSQL server: install the package postgresql".
#define ATOLL_REQUIRE_FACILITY(there, what) \
  if (!(there)) GTEST_SKIP() << "needs " << what
