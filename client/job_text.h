// Jobs and tasks as text for people. Pure.
#pragma once

#include <string>

#include "atoll/job/v1/job.pb.h"

namespace atl::client {

std::string StateName(atlpb::job::v1::Job::State state);   // "running"
std::string StateName(atlpb::job::v1::Task::State state);  // "leased"
std::string KindName(atlpb::job::v1::TaskKind kind);       // "train_expert"
std::string TaskName(const atlpb::job::v1::Task& task);    // "expert 2", "router", "featurize 1", "publish"
bool IsFinal(atlpb::job::v1::Job::State state);

// "rolled back to step 40, skipped 12 steps, evidence at file:///…: training diverged: …".
std::string DescribeRollback(const atlpb::job::v1::Rollback& rollback);

// The job's facts, then a table of its tasks, then their rollbacks and the last errors of one that failed. `width` 0:
// nothing of the table is cut.
std::string DescribeJob(const atlpb::job::v1::Job& job, int width);

}  // namespace atl::client
