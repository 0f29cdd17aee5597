// The commands of `atoll`, one file each. AddX puts a command into the app; when the user chooses it, it sets
// session->run, which the app calls once every argument is parsed.
#pragma once

#include "CLI/App.hpp"
#include "client/session.h"

namespace atl::client {

void AddUpCommand(CLI::App* app, Session* session);
void AddDownCommand(CLI::App* app, Session* session);
void AddDatasetCommand(CLI::App* app, Session* session);
void AddSubmitCommand(CLI::App* app, Session* session);
void AddJobsCommand(CLI::App* app, Session* session);
// Below `jobs`.
void AddTraceCommand(CLI::App* jobs, Session* session);
void AddIslandsCommand(CLI::App* app, Session* session);
void AddModelsCommand(CLI::App* app, Session* session);
void AddServersCommand(CLI::App* app, Session* session);
void AddSampleCommand(CLI::App* app, Session* session);
void AddPlanCommand(CLI::App* app, Session* session);
void AddProfileCommand(CLI::App* app, Session* session);
void AddReportCommand(CLI::App* app, Session* session);
void AddFsckCommand(CLI::App* app, Session* session);
void AddAuthCommand(CLI::App* app, Session* session);
void AddCompletionCommand(CLI::App* app, Session* session);

}  // namespace atl::client
