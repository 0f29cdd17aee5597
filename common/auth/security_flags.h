// The flags of SecurityOptions, the same in every program.
#pragma once

#include "CLI/CLI.hpp"
#include "common/auth/security_options.h"

namespace atl::rpc {

enum class Side { kClient, kServer, kBoth };

// Adds --tls-dir (ATOLL_TLS_DIR), and by side --ca (ATOLL_CA), --token-file (ATOLL_TOKEN_FILE), --principals,
// --deny-list, --require-client-certificate and --insecure-network. kClient is the command, which decides itself when
// the environment counts. Tokens and keys are in files only, because every process of a machine can read a command
// line.
void AddSecurityFlags(CLI::App& app, SecurityOptions* options, Side side);

}  // namespace atl::rpc
