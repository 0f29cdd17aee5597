#include "common/metrics/metrics.h"

#include <cstdlib>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/version.h"
#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "spdlog/spdlog.h"

namespace atl::metrics {
namespace {

class PrometheusCounter : public Counter {
 public:
  explicit PrometheusCounter(prometheus::Counter& counter) : counter_(counter) {}
  void Increment(double by) override { counter_.Increment(by); }
  double Value() const override { return counter_.Value(); }

 private:
  prometheus::Counter& counter_;
};

class PrometheusGauge : public Gauge {
 public:
  explicit PrometheusGauge(prometheus::Gauge& gauge) : gauge_(gauge) {}
  void Set(double value) override { gauge_.Set(value); }
  void Add(double by) override { gauge_.Increment(by); }
  double Value() const override { return gauge_.Value(); }
  prometheus::Gauge& inner() { return gauge_; }

 private:
  prometheus::Gauge& gauge_;
};

class PrometheusHistogram : public Histogram {
 public:
  explicit PrometheusHistogram(prometheus::Histogram& histogram) : histogram_(histogram) {}
  void Observe(double value) override { histogram_.Observe(value); }

 private:
  prometheus::Histogram& histogram_;
};

// The series of one family of type T (prometheus::Counter, …), wrapped as W.
template <typename T, typename W>
struct Series {
  prometheus::Family<T>* family = nullptr;
  std::map<Labels, std::unique_ptr<W>> by_labels;

  template <typename... Args>
  W* Get(Labels labels, Args&&... args) {
    if (by_labels.size() >= kMaxSeries && by_labels.count(labels) == 0) {
      for (auto& [name, value] : labels) value = "other";
    }
    std::unique_ptr<W>& series = by_labels[labels];
    if (series == nullptr) series = std::make_unique<W>(family->Add(labels, std::forward<Args>(args)...));
    return series.get();
  }
};

class PrometheusRegistry : public Registry {
 public:
  Counter* AddCounter(const std::string& name, const std::string& help, const Labels& labels) override {
    return OrAbort(name, [&]() -> Counter* {
      absl::MutexLock lock(&mutex_);
      auto& series = counters_[name];
      if (series.family == nullptr)
        series.family = &prometheus::BuildCounter().Name(name).Help(help).Register(registry_);
      return series.Get(labels);
    });
  }

  Gauge* AddGauge(const std::string& name, const std::string& help, const Labels& labels) override {
    return OrAbort(name, [&]() -> Gauge* {
      absl::MutexLock lock(&mutex_);
      auto& series = gauges_[name];
      if (series.family == nullptr) series.family = &prometheus::BuildGauge().Name(name).Help(help).Register(registry_);
      return series.Get(labels);
    });
  }

  Histogram* AddHistogram(const std::string& name, const std::string& help, const std::vector<double>& bounds,
                          const Labels& labels) override {
    return OrAbort(name, [&]() -> Histogram* {
      absl::MutexLock lock(&mutex_);
      auto& series = histograms_[name];
      if (series.family == nullptr) {
        series.family = &prometheus::BuildHistogram().Name(name).Help(help).Register(registry_);
      }
      return series.Get(labels, bounds);
    });
  }

  void RemoveGauge(const std::string& name, const Labels& labels) override {
    absl::MutexLock lock(&mutex_);
    const auto series = gauges_.find(name);
    if (series == gauges_.end()) return;
    const auto gauge = series->second.by_labels.find(labels);
    if (gauge == series->second.by_labels.end()) return;
    series->second.family->Remove(&gauge->second->inner());
    series->second.by_labels.erase(gauge);
  }

  std::string Text() const override { return prometheus::TextSerializer().Serialize(registry_.Collect()); }

 private:
  // prometheus-cpp throws for bad names and for a name of another type; both are bugs of the caller.
  template <typename F>
  static auto OrAbort(const std::string& name, F&& make) -> decltype(make()) {
    try {
      return make();
    } catch (const std::exception& error) {
      spdlog::critical("metric {}: {}", name, error.what());
      std::abort();
    }
  }

  prometheus::Registry registry_;
  absl::Mutex mutex_;
  std::map<std::string, Series<prometheus::Counter, PrometheusCounter>> counters_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Series<prometheus::Gauge, PrometheusGauge>> gauges_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Series<prometheus::Histogram, PrometheusHistogram>> histograms_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Registry> Registry::Create(std::string_view process) {
  auto registry = std::make_unique<PrometheusRegistry>();
  registry
      ->AddGauge("atoll_build_info", "Always 1; its labels say which build runs as what.",
                 {{"version", std::string(kVersion)}, {"process", std::string(process)}})
      ->Set(1);
  registry->AddGauge("process_start_time_seconds", "Start of the process since the Unix epoch in seconds.", {})
      ->Set(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  return registry;
}

std::vector<double> CallSecondsBounds() {
  return {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60};
}
std::vector<double> WorkSecondsBounds() {
  return {0.1, 0.3, 1, 3, 10, 30, 60, 300, 600, 1800, 3600};
}

}  // namespace atl::metrics
