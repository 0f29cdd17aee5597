// What a test needs of the machine: a program, a privilege, a server.
#pragma once

#include <cstdlib>

#include "gtest/gtest.h"

// Ends the test where `there` is false: skipped by name, or failed where CI is set, which has everything. `what` says
// what is missing and how to get it: "a PostgreSQL server: install the package postgresql".
#define ATOLL_REQUIRE_FACILITY(there, what)                       \
  do {                                                            \
    if (there) break;                                             \
    if (std::getenv("CI") != nullptr) FAIL() << "needs " << what; \
    GTEST_SKIP() << "needs " << what;                             \
  } while (false)
