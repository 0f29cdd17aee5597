// The blob store's keys that come with a task. Pure.
#pragma once

#include <optional>

#include "common/spec/task.h"
#include "common/storage/blob_store.h"

namespace atl::worker {

// The keys of a grant, as the store takes them; unset: the island's own.
std::optional<storage::GrantedKeys> KeysOf(const spec::StorageGrant& grant);

}  // namespace atl::worker
