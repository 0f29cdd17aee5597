#include "coordinator/serving/expert_registry.h"

#include <algorithm>
#include <cstddef>
#include <set>

#include "common/base/backoff.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace atl::coordinator {
namespace {

// After a start with published models: for servers and routers to tell what there is.
constexpr absl::Duration kSettle = absl::Seconds(7);
// A version that no router reports is kept for so long after its successor was ready.
constexpr absl::Duration kLinger = absl::Seconds(10);
// How often replicas follow what routers ask.
constexpr absl::Duration kHeatInterval = absl::Seconds(15);
// A server that could not load a network gets it again after this, where another server has room.
constexpr absl::Duration kFailureMemory = absl::Minutes(5);
// An answer that does not come in so long never will.
constexpr absl::Duration kReadPatience = absl::Minutes(1);
// Between two tries to read a version's index.
constexpr BackoffLimits kReadBackoff{.first = absl::Seconds(1), .longest = absl::Minutes(1)};
// The limit on remembered failures per server: more than the networks that one server can be assigned.
constexpr ptrdiff_t kMostFailures = 1'000;

size_t CountAssigned(const serving::HostingPlan& plan) {
  size_t assigned = 0;
  for (const auto& [server, networks] : plan.assigned) assigned += networks.size();
  return assigned;
}

size_t CountUnplaced(const serving::HostingPlan& plan) {
  size_t unplaced = 0;
  for (const auto& [version, shortage] : plan.shortages) unplaced += shortage.networks.size();
  return unplaced;
}

void LogChanges(const serving::HostingPlan& before, const serving::HostingPlan& now) {
  for (const auto& [server, networks] : now.assigned) {
    const auto old = before.assigned.find(server);
    if (old != before.assigned.end() && old->second == networks) continue;
    if (old == before.assigned.end() && networks.empty()) continue;
    spdlog::info("expert server '{}' is to host {} network{}", server, networks.size(),
                 networks.size() == 1 ? "" : "s");
  }
  for (const auto& [version, shortage] : now.shortages) {
    const auto old = before.shortages.find(version);
    if (old == before.shortages.end() || old->second != shortage) {
      spdlog::warn("{}", std::string(shortage.error.message()));
    }
  }
  for (const auto& [version, shortage] : before.shortages) {
    if (now.shortages.contains(version)) continue;
    spdlog::info("model '{}' version '{}': no network lacks an expert server any more", version.first, version.second);
  }
  if (before.over_memory_bytes == now.over_memory_bytes) return;
  spdlog::info("expert servers are to host {} bytes more than their memory holds, while versions are replaced",
               now.over_memory_bytes);
}

}  // namespace

ExpertRegistryMetrics::ExpertRegistryMetrics(metrics::Registry* registry)
    : servers(registry->AddGauge("atoll_coordinator_expert_servers", "Expert servers that are known.")),
      routers(registry->AddGauge("atoll_coordinator_routers", "Routers that report which versions they use.")),
      assigned(registry->AddGauge("atoll_coordinator_networks_assigned",
                                  "Networks that expert servers are to host; each replica counts.")),
      unplaced(registry->AddGauge("atoll_coordinator_networks_unplaced",
                                  "Networks that are wanted and assigned to no expert server.")),
      lacking_bytes(
          registry->AddGauge("atoll_coordinator_lacking_bytes", "Weights that find no room on expert servers.")),
      over_memory_bytes(registry->AddGauge("atoll_coordinator_over_memory_bytes",
                                           "Weights assigned beyond servers' memory while versions are replaced.")),
      index_failures(registry->AddCounter("atoll_coordinator_index_failures_total",
                                          "Tries to read a version's model_index.json that failed.")) {}

ExpertRegistry::ExpertRegistry(ExpertRegistryOptions options, bool settles, Clock* clock,
                               ExpertRegistryMetrics* metrics, ReadWeights read_weights)
    : options_(options),
      clock_(*clock),
      metrics_(*metrics),
      read_weights_(std::move(read_weights)),
      settled_at_(clock->Monotonic() + (settles ? kSettle : absl::ZeroDuration())),
      watches_(options.watch_interval) {}

void ExpertRegistry::TakeModel(const store::Model& model) {
  serving::PublishedModel published{.name = model.name, .serving = model.serving.version};
  for (const store::ModelVersionRow& row : model.versions) {
    published.versions.push_back(
        {.version = row.version, .uri = row.uri, .digest = row.digest, .experts = row.experts});
  }
  serving::PublishedModel& known = models_[model.name];
  if (known == published) return;
  // Ready anew: another version may serve now.
  if (known.serving != published.serving) ready_since_.erase(model.name);
  known = std::move(published);
  news_ = true;
}

absl::StatusOr<ServerHeartbeatAnswer> ExpertRegistry::Heartbeat(const serving::ExpertServer& server, int64_t sequence,
                                                                bool leaving) {
  ServerHeartbeatAnswer answer{.interval = serving::kHeartbeatInterval};
  if (leaving) {
    ATOLL_ASSIGN_OR_RETURN(const bool left, servers_.Leave(server));
    if (left) {
      spdlog::info("expert server '{}' leaves", server.server_id);
      expects_servers_ = servers_.size() > 0;
      news_ = true;
    }
    answer.undecided = true;
    return answer;
  }
  const size_t before = servers_.size();
  ATOLL_ASSIGN_OR_RETURN(const bool changed, servers_.TakeHeartbeat(Now(), server, sequence));
  if (servers_.size() > before) {
    spdlog::info("expert server '{}' at {} hosts {} networks", server.server_id, server.address,
                 server.networks.size());
  }
  expects_servers_ = true;
  if (changed) {
    NoteFailures(server);
    news_ = true;
  }
  Refresh();
  const auto assigned = plan_.assigned.find(server.server_id);
  answer.undecided = assigned == plan_.assigned.end();
  if (answer.undecided) {
    if (Now() >= settled_at_) answer.interval = options_.watch_interval;
    return answer;
  }
  for (const NetworkId& network : assigned->second) {
    answer.assigned.push_back({.network = network, .uri = uris_.at(network.digest)});
  }
  return answer;
}

void ExpertRegistry::NoteFailures(const serving::ExpertServer& server) {
  auto noted = std::count_if(failures_.begin(), failures_.end(),
                             [&](const auto& failure) { return failure.first.first == server.server_id; });
  for (const serving::HostedNetwork& hosted : server.networks) {
    const std::pair key{server.server_id, hosted.network};
    if (hosted.state == serving::NetworkState::kReady) noted -= static_cast<ptrdiff_t>(failures_.erase(key));
    if (hosted.state != serving::NetworkState::kFailed) continue;
    // Before the first decision the wanted networks are unknown.
    if (!uris_.empty() && !uris_.contains(hosted.network.digest)) continue;
    const auto known = failures_.find(key);
    if (known == failures_.end() && noted >= kMostFailures) continue;
    failures_[key] = Now() + kFailureMemory;
    if (known != failures_.end()) continue;
    ++noted;
    spdlog::warn("expert server '{}' cannot host {}: {}", server.server_id, Describe(hosted.network),
                 hosted.error.ToString());
  }
}

absl::StatusOr<absl::Duration> ExpertRegistry::ReportRouting(const serving::RoutingReport& report) {
  const size_t before = routers_.size();
  ATOLL_ASSIGN_OR_RETURN(const bool changed, routers_.Take(Now(), report));
  if (routers_.size() > before) spdlog::info("router '{}' reports", report.router_id);
  news_ = news_ || changed;
  heat_news_ = true;
  return serving::kReportInterval;
}

int64_t ExpertRegistry::WatchServers(WatchCallback send) {
  const int64_t ticket = next_ticket_++;
  callbacks_[ticket] = std::move(send);
  watches_.Add(ticket, "", 0);
  return ticket;
}

void ExpertRegistry::CancelWatch(int64_t ticket) {
  watches_.Remove(ticket);
  callbacks_.erase(ticket);
}

void ExpertRegistry::EndWatches() {
  const absl::Status stopping =
      MakeError(absl::StatusCode::kUnavailable, "COORDINATOR_STOPPING", "the coordinator is stopping; try again");
  for (const auto& [ticket, send] : callbacks_) send(stopping, true);
  for (const int64_t ticket : watches_.Tickets()) CancelWatch(ticket);
}

void ExpertRegistry::Tick() {
  const absl::Duration now = Now();
  ForgetTheSilent(now);
  TakeHeat(now);
  Refresh();
  SendDueWatches();
}

void ExpertRegistry::ForgetTheSilent(absl::Duration now) {
  for (const std::string& id : servers_.Expire(now)) {
    spdlog::warn("expert server '{}' is silent and forgotten", id);
    news_ = true;
  }
  for (const std::string& id : routers_.Expire(now)) {
    spdlog::warn("router '{}' is silent and forgotten", id);
    news_ = true;
  }
}

void ExpertRegistry::TakeHeat(absl::Duration now) {
  if (!heat_news_ || now < heat_due_) return;
  heat_news_ = false;
  heat_due_ = now + kHeatInterval;
  std::map<serving::VersionName, std::vector<int64_t>> heat;
  for (const serving::VersionName& version : routers_.InUse()) heat[version] = routers_.Chosen(now, version);
  if (heat == heat_) return;
  heat_ = std::move(heat);
  news_ = true;
}

absl::Duration ExpertRegistry::NextWake() const {
  absl::Duration next = std::min({NextRefresh(), servers_.NextExpiry(), routers_.NextExpiry(), watches_.NextWake()});
  if (heat_news_) next = std::min(next, heat_due_);
  return next;
}

void ExpertRegistry::Refresh() {
  const absl::Duration now = Now();
  if (now < NextRefresh()) return;
  news_ = false;
  not_before_ = now + options_.watch_interval;
  look_again_ = absl::InfiniteDuration();
  watches_.MarkDirty("");
  if (now < settled_at_) {
    look_again_ = settled_at_;
    return TakePlan({});
  }
  if (!expects_servers_) return TakePlan({});
  const serving::VersionFacts version_facts = GatherVersionFacts(now);
  std::vector<serving::PublishedModel> models;
  for (const auto& [name, model] : models_) models.push_back(model);
  serving::HostingFacts facts{.versions = serving::DecideWanted(models, version_facts),
                              .servers = servers_.servers(),
                              .chosen = heat_,
                              .router_networks = routers_.needs_router_networks()};
  BeginReads(now, facts.versions);
  for (const auto& [digest, weights] : weights_) {
    if (weights.asked) facts.weights.emplace(digest, weights.known);
  }
  std::erase_if(failures_, [&](const auto& failure) {
    return failure.second <= now || !uris_.contains(failure.first.second.digest);
  });
  for (const auto& [failure, until] : failures_) {
    facts.failing.insert(failure);
    look_again_ = std::min(look_again_, until);
  }
  TakePlan(serving::PlanHosting(facts, options_.replicas));
}

serving::VersionFacts ExpertRegistry::GatherVersionFacts(absl::Duration now) {
  const std::vector<const serving::ExpertServer*> servers = servers_.servers();
  serving::VersionFacts facts{.in_use = routers_.InUse(), .pinned = routers_.Pinned()};
  for (const serving::ExpertServer* server : servers) {
    for (const serving::HostedNetwork& hosted : server->networks) facts.hosted.insert(hosted.network.digest);
  }
  for (const auto& [name, model] : models_) {
    const auto version = std::find_if(model.versions.begin(), model.versions.end(),
                                      [&serving = model.serving](const auto& one) { return one.version == serving; });
    if (version == model.versions.end() || !serving::IsReady(name, *version, servers)) {
      ready_since_.erase(name);
      continue;
    }
    const absl::Duration until = ready_since_.try_emplace(name, now).first->second + kLinger;
    if (until <= now) {
      facts.rolled.insert(name);
    } else {
      look_again_ = std::min(look_again_, until);
    }
  }
  return facts;
}

void ExpertRegistry::BeginReads(absl::Duration now, const std::vector<serving::WantedVersion>& wanted) {
  uris_.clear();
  for (const serving::WantedVersion& version : wanted) uris_[version.version.digest] = version.version.uri;
  std::erase_if(weights_, [&](const auto& entry) { return !uris_.contains(entry.first); });
  for (const auto& [digest, uri] : uris_) {
    Weights& weights = weights_[digest];
    if (weights.known.ok()) continue;
    if (weights.next_try <= now) {
      const bool begun = read_weights_(uri, digest, [this, of = digest](absl::StatusOr<serving::VersionWeights> read) {
        TakeWeights(of, std::move(read));
      });
      weights.next_try = now + (begun ? kReadPatience : kReadBackoff.first);
    }
    look_again_ = std::min(look_again_, weights.next_try);
  }
}

void ExpertRegistry::TakeWeights(const std::string& digest, absl::StatusOr<serving::VersionWeights> weights) {
  const auto entry = weights_.find(digest);
  if (entry == weights_.end()) return;
  Weights& known = entry->second;
  known.asked = true;
  news_ = true;
  if (weights.ok()) {
    known.known = std::move(weights);
    return;
  }
  metrics_.index_failures->Increment();
  known.known = weights.status();
  known.next_try = Now() + BackoffDelay(kReadBackoff, ++known.failures, 0);
}

void ExpertRegistry::TakePlan(serving::HostingPlan plan) {
  LogChanges(plan_, plan);
  plan_ = std::move(plan);
  metrics_.servers->Set(static_cast<double>(servers_.size()));
  metrics_.routers->Set(static_cast<double>(routers_.size()));
  metrics_.assigned->Set(static_cast<double>(CountAssigned(plan_)));
  metrics_.unplaced->Set(static_cast<double>(CountUnplaced(plan_)));
  metrics_.lacking_bytes->Set(static_cast<double>(plan_.lacking_bytes));
  metrics_.over_memory_bytes->Set(static_cast<double>(plan_.over_memory_bytes));
}

void ExpertRegistry::SendDueWatches() {
  const std::vector<WatchList::Watch*> due = watches_.TakeDue(Now());
  if (due.empty()) return;
  auto view = std::make_shared<ServersView>();
  for (const serving::ExpertServer* server : servers_.servers()) view->servers.push_back(*server);
  view->plan = plan_;
  for (const WatchList::Watch* watch : due) callbacks_[watch->ticket](std::shared_ptr<const ServersView>(view), false);
}

}  // namespace atl::coordinator
