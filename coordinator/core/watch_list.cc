#include "coordinator/core/watch_list.h"

#include <algorithm>

namespace atl::coordinator {

void WatchList::Add(int64_t ticket, std::string_view key, int64_t after) {
  Watch& watch = watches_[ticket];
  watch.ticket = ticket;
  watch.key = key;
  watch.after = after;
}

void WatchList::MarkDirty(std::string_view key) {
  for (auto& [ticket, watch] : watches_) {
    if (watch.key.empty() || watch.key == key) watch.dirty = true;
  }
}

std::vector<WatchList::Watch*> WatchList::TakeDue(absl::Duration now) {
  std::vector<Watch*> due;
  for (auto& [ticket, watch] : watches_) {
    if (!watch.dirty || watch.not_before > now) continue;
    watch.dirty = false;
    watch.not_before = now + interval_;
    due.push_back(&watch);
  }
  return due;
}

void WatchList::Postpone(Watch& watch, absl::Duration when) {
  watch.dirty = true;
  watch.not_before = when;
}

absl::Duration WatchList::NextWake() const {
  absl::Duration next = absl::InfiniteDuration();
  for (const auto& [ticket, watch] : watches_) {
    if (watch.dirty) next = std::min(next, watch.not_before);
  }
  return next;
}

std::vector<int64_t> WatchList::Tickets() const {
  std::vector<int64_t> tickets;
  for (const auto& [ticket, watch] : watches_) tickets.push_back(ticket);
  return tickets;
}

}  // namespace atl::coordinator
