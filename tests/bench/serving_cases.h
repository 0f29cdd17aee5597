// The cases of the serving bench and their shared code.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/weights.h"
#include "common/storage/testing.h"
#include "tests/bench/figures.h"
#include "tests/bench/serving_load.h"
#include "tests/bench/serving_model.h"

namespace atl::bench {

inline constexpr int kLanes = 2;
// The rate that overload is compared with, relative to the sustainable rate. At both rates the queue is equally full,
// and its length determines how long an accepted request waits.
inline constexpr double kSaturation = 1.5;

// The most that memory may grow under ten times the sustainable rate, and from cancelled requests.
inline constexpr double kMemoryGrowth = 1.1;

struct Settings {
  std::vector<std::string> cases;
  int rounds = 7;  // half as many of fairness; overload and company are one run each
  int steps = 10;
  double overload_seconds = 30;
  std::string device = "cpu";  // of the case throughput; or "cuda": one lane per device instead of kLanes
  std::string peer_python;     // empty: no comparison with PyTorch
  std::string peer_script;
  std::string worker;  // program of expert servers
  std::string router;
  uint64_t company_images = 200;
  std::string model_dir;  // of the case company; empty: the model of the others
};

// A model in a temporary store.
struct Published {
  ServingModel model;
  std::vector<model::LoadedModel> networks;
  storage::TemporaryStore store;
  std::string uri;
  std::string digest;
};

absl::StatusOr<std::unique_ptr<Published>> PublishModel(const ServingModel& model);

// Makes requests for images of random classes, each with its own seed, top-1, no guidance: one row per image and step.
class Requests {
 public:
  Requests(int classes, int steps, uint64_t seed) : classes_(classes), steps_(steps), random_(seed) {}

  TimedRequest Make(int images, absl::Duration at = absl::ZeroDuration());
  std::vector<TimedRequest> MakeSome(int requests, int images);
  // Schedules them at random within `seconds`, the first one at once.
  void Scatter(double seconds, std::vector<TimedRequest>* requests);

 private:
  const int classes_;
  const int steps_;
  std::mt19937_64 random_;
  uint64_t next_seed_ = 0;
};

// Returns the requests' images as one request.
TimedRequest Together(const std::vector<TimedRequest>& requests);

// The values of several rounds by (case, metric).
using Figures = std::map<std::pair<std::string, std::string>, std::vector<double>>;

// The targets of medians, by (case, metric).
using Targets = std::map<std::pair<std::string, std::string>, Target>;

// Prints medians, and the spread if there are at least three values.
void PrintMedians(const Figures& figures, const std::string& unit, const Targets& targets = {});

// Each prints its figures. `published` is 8 experts of width 256 and depth 8.
absl::Status RunThroughput(const Settings& settings, Published* published);
absl::Status RunFairness(const Settings& settings, Published* published);
absl::Status RunNumbers(const Settings& settings, Published* published);
absl::Status RunCompany(const Settings& settings, Published* published);
absl::Status RunCancel(const Settings& settings, Published* published);
absl::Status RunDevices(const Settings& settings, Published* published);
absl::Status RunGrpc(const Settings& settings, Published* published);
// These make their own models.
absl::Status RunOverload(const Settings& settings, Published* published);
absl::Status RunRemote(const Settings& settings, Published* published);

}  // namespace atl::bench
