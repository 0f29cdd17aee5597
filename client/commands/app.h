// The command line of `atoll` as a whole: parses, runs one command, turns its status into one line and an exit code.
#pragma once

#include <string>
#include <vector>

#include "client/session.h"

namespace atl::client {

// `arguments` without the program's name. `session` brings streams, environment and terminal. Never throws.
int RunAtoll(const std::vector<std::string>& arguments, Session session);

}  // namespace atl::client
