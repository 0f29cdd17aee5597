// Caches the most recently used values. Not thread-safe.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <utility>

namespace atl::dataset {

template <typename Key, typename Value>
class LruCache {
 public:
  // Holds at least one value, even if the capacity is 0.
  explicit LruCache(size_t capacity) : capacity_(capacity > 0 ? capacity : 1) {}

  // Returns null if absent. The value stays valid while the caller holds it, cached or not.
  std::shared_ptr<Value> Find(const Key& key) {
    const auto found = index_.find(key);
    if (found == index_.end()) return nullptr;
    values_.splice(values_.begin(), values_, found->second);
    return values_.front().second;
  }

  // `key` must be absent.
  void Insert(const Key& key, std::shared_ptr<Value> value) {
    values_.emplace_front(key, std::move(value));
    index_[key] = values_.begin();
    if (values_.size() <= capacity_) return;
    index_.erase(values_.back().first);
    values_.pop_back();
  }

 private:
  const size_t capacity_;
  std::list<std::pair<Key, std::shared_ptr<Value>>> values_;
  std::map<Key, typename std::list<std::pair<Key, std::shared_ptr<Value>>>::iterator> index_;
};

}  // namespace atl::dataset
