// The blob store's keys that come with a task. Pure.
#pragma once

#include <optional>

#include "common/spec/task.h"
#include "common/storage/blob_store.h"

namespace atl::worker {

// Returns the keys of a grant in the store's form, or nullopt if the island uses its own.
std::optional<storage::GrantedKeys> KeysOf(const spec::StorageGrant& grant);

}  // namespace atl::worker
