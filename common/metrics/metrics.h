// Metrics of one process: counters, gauges and histograms with bounded labels. prometheus-cpp stays in the .cc files.
//
// Names follow Prometheus' rules: atoll_<noun>_<unit>, base units (seconds, bytes, ratio), _total for counters. A
// metric is made once and kept; making the same one again returns it. Pointers live as long as the registry.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace atl::metrics {

using Labels = std::map<std::string, std::string>;

// A family keeps at most this many label sets; further ones share the one whose values are all "other". User and
// request ids never belong in labels.
inline constexpr int kMaxSeries = 100;

// All thread-safe; none blocks.
class Counter {
 public:
  virtual ~Counter() = default;
  // `by` >= 0.
  virtual void Increment(double by = 1) = 0;
  virtual double Value() const = 0;
};

class Gauge {
 public:
  virtual ~Gauge() = default;
  virtual void Set(double value) = 0;
  virtual void Add(double by) = 0;
  virtual double Value() const = 0;
};

class Histogram {
 public:
  virtual ~Histogram() = default;
  virtual void Observe(double value) = 0;
};

// Thread-safe. If Prometheus rejects a name, or the name exists as another type, the caller has a bug: the process logs
// it and aborts.
class Registry {
 public:
  virtual ~Registry() = default;
  virtual Counter* AddCounter(const std::string& name, const std::string& help, const Labels& labels = {}) = 0;
  virtual Gauge* AddGauge(const std::string& name, const std::string& help, const Labels& labels = {}) = 0;
  // `bounds`: upper bounds of the buckets, growing; +Inf is added.
  virtual Histogram* AddHistogram(const std::string& name, const std::string& help, const std::vector<double>& bounds,
                                  const Labels& labels = {}) = 0;
  // Removes one series of a family whose subject no longer exists. Its pointer must not be used any more.
  virtual void RemoveGauge(const std::string& name, const Labels& labels) = 0;

  // Returns all metrics in Prometheus' text format.
  virtual std::string Text() const = 0;

  // Creates a registry with the process's own metrics: atoll_build_info{version, process} and
  // process_start_time_seconds.
  static std::unique_ptr<Registry> Create(std::string_view process);
};

// Bounds for durations of calls, 1 ms to 60 s, and of long work, 0.1 s to 1 h, in seconds.
std::vector<double> CallSecondsBounds();
std::vector<double> WorkSecondsBounds();

}  // namespace atl::metrics
