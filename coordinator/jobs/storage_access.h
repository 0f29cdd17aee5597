// What a task touches in the blob store (docs/formats.md has the folders). Pure.
#pragma once

#include <string_view>

#include "common/spec/task.h"

namespace atl::jobs {

// The prefixes of a grant, whose other fields are set, below `root`, without keys. Few, and as wide as a job: policies
// of object stores are short, and a task reads the outputs of many others of its job.
spec::StorageGrant StorageAccessOf(const spec::TaskGrant& grant, std::string_view root);

}  // namespace atl::jobs
