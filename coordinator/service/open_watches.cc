#include "coordinator/service/open_watches.h"

#include <utility>
#include <vector>

#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::coordinator {
namespace {

// Between two looks at all of them.
constexpr absl::Duration kLookEvery = absl::Seconds(5);

}  // namespace

absl::StatusOr<int64_t> OpenWatches::Admit(std::string_view caller) {
  absl::MutexLock lock(&mutex_);
  const auto count = by_caller_.try_emplace(std::string(caller), 0).first;
  if (count->second >= limits_.per_caller) {
    return MakeError(absl::StatusCode::kResourceExhausted, "TOO_MANY_WATCHES",
                     fmt::format("expected at most {} open watches of '{}', found one more; end others first",
                                 limits_.per_caller, caller));
  }
  ++count->second;
  open_[next_ticket_] = {.caller = std::string(caller), .stream = {}};
  return next_ticket_++;
}

void OpenWatches::Open(int64_t ticket, std::weak_ptr<WatchStream> stream) {
  absl::MutexLock lock(&mutex_);
  if (const auto entry = open_.find(ticket); entry != open_.end()) entry->second.stream = std::move(stream);
}

void OpenWatches::Close(int64_t ticket) {
  absl::MutexLock lock(&mutex_);
  const auto entry = open_.find(ticket);
  if (entry == open_.end()) return;
  if (const auto count = by_caller_.find(entry->second.caller); --count->second == 0) by_caller_.erase(count);
  open_.erase(entry);
}

int OpenWatches::CutUnread(absl::Duration now) {
  // Streams have locks of their own, and call Close: nothing is held here while they are asked.
  std::vector<std::shared_ptr<WatchStream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    if (now - looked_ < kLookEvery) return 0;
    looked_ = now;
    for (const auto& [ticket, entry] : open_) {
      if (auto stream = entry.stream.lock()) streams.push_back(std::move(stream));
    }
  }
  int cut = 0;
  for (const auto& stream : streams) {
    if (now - stream->unread_since() < limits_.max_unread) continue;
    stream->Cut();
    ++cut;
  }
  return cut;
}

absl::Duration OpenWatches::NextLook(absl::Duration now) {
  absl::MutexLock lock(&mutex_);
  if (open_.empty()) return absl::InfiniteDuration();
  return std::max(now, looked_ + kLookEvery);
}

}  // namespace atl::coordinator
