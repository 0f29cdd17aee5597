// What a task touches in the blob store (docs/formats.md has the folders). Pure.
#pragma once

#include <string>
#include <string_view>

#include "common/spec/task.h"

namespace atl::jobs {

// The folder of the files that jobs name: "<root>/inputs/".
std::string InputsFolder(std::string_view root);

// Whether a job may name `uri`: a file below the inputs' folder, with letters, digits and ._-=+ alone in its names. So
// no job opens the files of another one or of a model to its islands, nor does a pattern in its place.
bool IsInput(std::string_view uri, std::string_view root);

// The prefixes of a grant, whose other fields are set, below `root`, without keys. Few, and as wide as a job: policies
// of object stores are short, and a task reads the outputs of many others of its job.
spec::StorageGrant StorageAccessOf(const spec::TaskGrant& grant, std::string_view root);

}  // namespace atl::jobs
