// Decides which watches are due. Coalesces changes, so that each watch sends at most once per interval. Pure; not
// thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"

namespace atl::coordinator {

class WatchList {
 public:
  struct Watch {
    int64_t ticket = 0;
    // The watched key; empty for all keys.
    std::string key;
    // Last version (revision, generation) that was sent, by key: one entry unless everything is watched.
    std::map<std::string, int64_t> sent;
    int64_t after = 0;
    absl::Duration not_before = absl::ZeroDuration();
    bool dirty = true;
  };

  explicit WatchList(absl::Duration interval) : interval_(interval) {}

  // Adds a watch that is due at once.
  void Add(int64_t ticket, std::string_view key, int64_t after);
  void Remove(int64_t ticket) { watches_.erase(ticket); }
  // Marks the watches of `key` as changed.
  void MarkDirty(std::string_view key);
  // Returns the watches to send now; each is then clean and not due before the interval has passed. Pointers are valid
  // until the list changes.
  std::vector<Watch*> TakeDue(absl::Duration now);
  // Makes the watch due again at `when`, because the data to send could not be read.
  static void Postpone(Watch& watch, absl::Duration when);
  // Returns InfiniteDuration when no watch waits to send.
  absl::Duration NextWake() const;
  std::vector<int64_t> Tickets() const;
  size_t size() const { return watches_.size(); }

 private:
  const absl::Duration interval_;
  std::map<int64_t, Watch> watches_;
};

}  // namespace atl::coordinator
