// The files and folders of the blob store that a task may access (docs/formats.md has the folders). Pure.
#pragma once

#include <string>
#include <string_view>

#include "common/spec/task.h"

namespace atl::jobs {

// Returns the folder of the files that jobs name: "<root>/inputs/".
std::string InputsFolder(std::string_view root);

// Whether a job may name `uri`: a file below the inputs' folder whose names have only letters, digits and ._-=+. So no
// job can give its islands access to the files of another job or of a model, or put a pattern in place of a name.
bool IsInput(std::string_view uri, std::string_view root);

// Returns the prefixes of a grant, whose other fields are set, below `root`, without keys. They are few and as wide as
// a job, because policies of object stores are short and a task reads the outputs of many other tasks of its job.
spec::StorageGrant StorageAccessOf(const spec::TaskGrant& grant, std::string_view root);

}  // namespace atl::jobs
