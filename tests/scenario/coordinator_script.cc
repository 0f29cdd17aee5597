#include "tests/scenario/coordinator_script.h"

#include <cstdlib>
#include <sstream>

#include "common/base/errors.h"
#include "common/storage/blob_store.h"
#include "coordinator/jobs/task_graph.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace atl::coordinator {
namespace {

constexpr char kBlobRoot[] = "file:///blobs";

std::string Result(const absl::Status& status) {
  if (status.ok()) return "ok";
  const std::string reason = ErrorReason(status);
  return reason.empty() ? status.ToString() : reason;
}

template <typename T>
std::string Result(const absl::StatusOr<T>& result) {
  return Result(result.status());
}

std::string Text(const spec::SkippedWindow& window) {
  return fmt::format("{}+{}", window.first_step, window.steps);
}

std::string NoAnswer(const JobView&) {
  return "";
}

}  // namespace

CoordinatorScript::CoordinatorScript(std::string folder)
    : folder_(std::move(folder)),
      registry_(metrics::Registry::Create("script")),
      metrics_(std::make_unique<CoreMetrics>(registry_.get())) {
  Open(false);
}

CoordinatorScript::~CoordinatorScript() = default;

const std::string& CoordinatorScript::Line::word(size_t i) const {
  static const std::string none;
  return i < words.size() ? words[i] : none;
}

std::string CoordinatorScript::Line::option(const std::string& name, const std::string& otherwise) const {
  const auto it = options.find(name);
  return it == options.end() ? otherwise : it->second;
}

int64_t CoordinatorScript::Line::number(const std::string& name, int64_t otherwise) const {
  const auto it = options.find(name);
  return it == options.end() ? otherwise : std::atoll(it->second.c_str());
}

CoordinatorScript::Line CoordinatorScript::Parse(const std::string& text) {
  Line line;
  const std::string uncommented = text.substr(0, text.find('#'));
  const size_t arrow = uncommented.find("->");
  std::istringstream words(uncommented.substr(0, arrow));
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) {
      line.words.push_back(word);
    } else {
      line.options[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }
  if (arrow != std::string::npos) {
    std::istringstream expected(uncommented.substr(arrow + 2));
    for (std::string word; expected >> word;) line.expected += (line.expected.empty() ? "" : " ") + word;
  }
  return line;
}

std::string CoordinatorScript::Run(const std::string& text) {
  std::istringstream lines(text);
  int number = 0;
  for (std::string raw; std::getline(lines, raw);) {
    ++number;
    const Line line = Parse(raw);
    if (line.words.empty()) continue;
    const std::string found = Execute(line);
    Settle();
    const std::string unmet = "unmet ";
    if (line.expected.rfind(unmet, 0) == 0) {
      const std::string lines_unmet = fmt::format("{}", fmt::join(processes_[line.word(1)].unmet, "; "));
      if (lines_unmet.find(line.expected.substr(unmet.size())) != std::string::npos) continue;
      return fmt::format("line {}: {}\n  expected {}\n  found    unmet {}", number, raw, line.expected, lines_unmet);
    }
    if (found != line.expected) {
      return fmt::format("line {}: {}\n  expected {}\n  found    {}", number, raw, line.expected, found);
    }
  }
  return "";
}

std::string CoordinatorScript::Do(const std::string& text) {
  const std::string found = Execute(Parse(text));
  Settle();
  return found;
}

void CoordinatorScript::Open(bool restored) {
  core_.reset();
  store_.reset();
  auto store = store::SqliteStore::Open({.path = folder_ + "/store.db"});
  if (!store.ok()) std::abort();
  store_ = *std::move(store);
  if (restored && !store_->MarkRestored().ok()) std::abort();
  if ((store_->epoch() == 0 || restored) && !store_->AdoptEpoch(store_->epoch() + 1).ok()) std::abort();
  CoreOptions options;
  options.blob_root = kBlobRoot;
  options.random_bytes = [this](size_t size) {
    std::string bytes = fmt::format("{:0{}}", ++random_, size);
    return bytes.substr(bytes.size() - size);
  };
  auto core = Core::Load(store_.get(), &clock_, std::move(options), metrics_.get());
  if (!core.ok()) std::abort();
  core_ = *std::move(core);
}

void CoordinatorScript::Settle() {
  core_->Deliver();
  core_->Tick();
  core_->Deliver();
}

std::string CoordinatorScript::RealId(const std::string& script_id) const {
  const size_t slash = script_id.find('/');
  const auto it = job_ids_.find(script_id.substr(0, slash));
  if (it == job_ids_.end()) return script_id;
  return it->second + (slash == std::string::npos ? "" : script_id.substr(slash));
}

std::string CoordinatorScript::ScriptId(const std::string& real_id) const {
  const size_t slash = real_id.find('/');
  for (const auto& [script, real] : job_ids_) {
    if (real == real_id.substr(0, slash)) return script + (slash == std::string::npos ? "" : real_id.substr(slash));
  }
  return real_id;
}

std::string CoordinatorScript::Execute(const Line& line) {
  const std::string& verb = line.word(0);
  if (verb == "job" && !job_ids_.contains(line.word(1))) return SubmitJob(line);
  if (verb == "register") return Register(line);
  if (verb == "claim") return Claim(line);
  if (verb == "cancel") return Result(core_->CancelJob({}, RealId(line.word(1)), "script", NoAnswer));
  if (verb == "move") {
    const std::string to = line.option("to", "");
    const auto process = processes_.find(to);
    return Result(core_->MoveTask({}, RealId(line.word(1)),
                                  process == processes_.end() ? to : process->second.island_id,
                                  [](const jobs::Task&) { return ""; }));
  }
  if (verb == "delete") return Result(core_->DeleteJob({}, RealId(line.word(1))));
  if (verb == "serve") {
    return Result(core_->SetServingVersion({}, line.word(1), RealId(line.word(2)), line.number("generation", 0),
                                           [](const store::Model&) { return ""; }));
  }
  if (verb == "restart" || verb == "restore") {
    Open(verb == "restore");
    return "";
  }
  if (verb == "forget") return Result(core_->ForgetSilentIslands());
  if (verb == "advance") {
    absl::Duration by;
    if (!absl::ParseDuration(line.word(1), &by)) return "a duration";
    clock_.Advance(by);
    return "";
  }
  return Ask(line);
}

std::string CoordinatorScript::Ask(const Line& line) {
  const std::string& verb = line.word(0);
  Process& process = processes_[line.word(1)];
  const spec::LeaseToken& token = process.grant.token;
  if (verb == "answered") return process.waiting;
  if (verb == "heartbeat") return Heartbeat(process, std::atof(line.option("step", "0").c_str()));
  if (verb == "island") return ShowIsland(process.island_id);
  if (verb == "drain" || verb == "undrain") {
    const std::string reason = verb == "drain" ? line.option("reason", "script") : "";
    return Result(core_->DrainIsland({}, process.island_id, reason, [](const IslandView&) { return ""; }));
  }
  if (verb == "commit") return Commit(process, line.number("step", 0));
  if (verb == "complete") return Complete(process);
  if (verb == "rollback") return Rollback(process, line.number("bad", 0), line.number("through", 0));
  if (verb == "fail") return Result(core_->FailTask(token, "INTERNAL", "script", line.word(2) == "permanent"));
  if (verb == "release") return Result(core_->ReleaseTask(token, "script"));
  if (verb == "task") return ShowTask(RealId(line.word(1)));
  if (verb == "checkpoints") return ShowCheckpoints(RealId(line.word(1)));
  if (verb == "errors") return ShowErrors(RealId(line.word(1)));
  if (verb == "attempt") {
    const auto row = store_->GetAttempt(RealId(line.word(1)), std::atoll(line.word(2).c_str()));
    return row.ok() && *row ? std::string(jobs::ToString((*row)->outcome)) : "none";
  }
  if (verb == "job") {
    const auto view = core_->GetJob(RealId(line.word(1)));
    return view.ok() ? std::string(jobs::ToString(view->record.job.state)) : Result(view);
  }
  if (verb == "serving") {
    const auto model = core_->GetModel(line.word(1));
    if (!model.ok()) return Result(model);
    return fmt::format("{} generation={}", ScriptId(model->serving.version), model->serving.generation);
  }
  return fmt::format("'{}' is no command", verb);
}

std::string CoordinatorScript::SubmitJob(const Line& line) {
  spec::JobSpec spec;
  spec.model_name = line.option("model", "digits");
  spec.dataset = "digits";
  spec.experts = static_cast<int32_t>(line.number("experts", 1));
  spec.training.steps = spec.router_training.steps = 100;
  spec.training.keep_checkpoints = static_cast<int32_t>(line.number("keep", 2));
  spec.training.milestone_every = static_cast<int32_t>(line.number("milestones", 0));
  spec.features.kind = "pixels_pca";
  spec.features.components = 8;
  spec.clustering.fine_centroids = 8;
  spec.priority = static_cast<int32_t>(line.number("priority", 0));
  spec.failure_budget = static_cast<int32_t>(line.number("budget", 3));
  spec.requirements.min_ranks = static_cast<int32_t>(line.number("ranks", 1));
  DatasetInfo dataset;
  dataset.manifest_uri = fmt::format("{}/datasets/digits/manifest.json", kBlobRoot);
  dataset.training_shards = static_cast<int32_t>(line.number("shards", 1));
  dataset.facts = {.training_samples = 1000, .classes = 10, .channels = 1, .height = 8, .width = 8, .columns = {}};
  const auto id =
      core_->SubmitJob({}, spec, dataset, false, [](const JobView& view) { return view.record.job.job_id; });
  if (!id.ok()) return id.status().ToString();
  job_ids_[line.word(1)] = *id;
  return "";
}

std::string CoordinatorScript::Register(const Line& line) {
  Process& process = processes_[line.word(1)];
  process.island_id = line.option("island", line.word(1));
  leases::Capabilities capabilities;
  capabilities.ranks = static_cast<int32_t>(line.number("ranks", 1));
  IslandQuota quota;
  if (const int64_t most = line.number("quota", 0); most > 0) quota.most = most;
  const std::string prefix = line.option("of", "");
  quota.counts = [prefix](std::string_view island_id) { return island_id.substr(0, prefix.size()) == prefix; };
  const auto registration =
      core_->RegisterIsland(process.island_id, line.option("start", line.word(1)), capabilities, quota);
  if (!registration.ok()) return Result(registration);
  process.incarnation = registration->incarnation;
  return fmt::format("incarnation={}", process.incarnation);
}

std::string CoordinatorScript::Claim(const Line& line) {
  Process& process = processes_[line.word(1)];
  ClaimRequest request;
  request.island_id = process.island_id;
  request.incarnation = process.incarnation;
  absl::ParseDuration(line.option("wait", "0s"), &request.wait);
  process.waiting = "waits";
  core_->ClaimTask(request, [this, &process](absl::StatusOr<ClaimAnswer> answer) {
    if (!answer.ok()) {
      process.waiting = Result(answer);
    } else if (!answer->grant) {
      process.waiting = "nothing";
      process.unmet.clear();
      for (const std::string& text : answer->unmet) process.unmet.push_back(ScriptId(text));
    } else {
      process.grant = *answer->grant;
      process.last_step = process.grant.resume_from ? process.grant.resume_from->step : 0;
      process.waiting =
          fmt::format("{} attempt={}", ScriptId(process.grant.token.task_id), process.grant.token.attempt);
      if (process.grant.resume_from) process.waiting += fmt::format(" resume={}", process.last_step);
      std::vector<std::string> skipped;
      for (const spec::SkippedWindow& window : process.grant.skipped) skipped.push_back(Text(window));
      if (!skipped.empty()) process.waiting += fmt::format(" skip={}", fmt::join(skipped, ","));
    }
  });
  core_->Deliver();
  return process.waiting;
}

std::string CoordinatorScript::Heartbeat(Process& process, double step_seconds) {
  std::vector<spec::LeaseToken> tokens;
  if (!process.grant.token.task_id.empty()) tokens.push_back(process.grant.token);
  const auto answer =
      core_->Heartbeat(process.island_id, process.incarnation, ++process.sequence, tokens, absl::Seconds(step_seconds));
  if (!answer.ok()) return Result(answer);
  if (!answer->revoked.empty()) return "revoked " + answer->revoked.front().reason;
  if (!answer->stopping.empty()) return "stopping " + answer->stopping.front().reason;
  return answer->drain_reason.empty() ? "ok" : "drained";
}

std::string CoordinatorScript::ShowIsland(const std::string& island_id) {
  constexpr const char* kNames[] = {"", "IDLE", "BUSY", "DRAINING", "DRAINED", "LOST"};
  for (const IslandView& view : core_->ListIslands()) {
    if (view.island.island_id != island_id) continue;
    std::string text = kNames[static_cast<size_t>(view.activity)];
    if (!view.task.task_id.empty()) text += " " + ScriptId(view.task.task_id);
    if (view.judgement.slowdown > 0) text += fmt::format(" slowdown={:.1f}", view.judgement.slowdown);
    return view.judgement.slow ? text + " SLOW" : text;
  }
  return "none";
}

std::string CoordinatorScript::Commit(Process& process, int64_t step) {
  spec::CommittedCheckpoint checkpoint;
  checkpoint.step = step;
  checkpoint.manifest_uri = fmt::format("{}/{}-x/manifest.json", process.grant.write_prefix, step);
  checkpoint.manifest_sha256 = storage::Sha256(checkpoint.manifest_uri);
  const auto superseded = core_->CommitCheckpoint(process.grant.token, checkpoint);
  if (!superseded.ok()) return Result(superseded);
  process.last_step = step;
  return superseded->empty() ? "ok" : fmt::format("superseded {}", fmt::join(*superseded, ","));
}

std::string CoordinatorScript::Complete(Process& process) {
  const spec::TaskGrant& grant = process.grant;
  std::string name;
  std::string uri;
  switch (grant.kind) {
    case spec::TaskKind::kFitFeatures:
      name = "pca";
      break;
    case spec::TaskKind::kFeaturize:
      name = "features";
      break;
    case spec::TaskKind::kCluster:
      name = "centroids";
      break;
    case spec::TaskKind::kPartition:
      name = "partition/0";
      break;
    case spec::TaskKind::kTrainExpert:
    case spec::TaskKind::kTrainRouter:
      name = "checkpoint";
      uri = fmt::format("{}/{}-x/manifest.json", grant.write_prefix, process.last_step);
      break;
    case spec::TaskKind::kPublish:
      name = "model_index";
      uri = fmt::format("{}/models/{}/{}/model_index.json", kBlobRoot, grant.spec.model_name, grant.job_id);
      break;
  }
  if (uri.empty()) uri = fmt::format("{}/{}", grant.write_prefix, name);
  return Result(core_->CompleteTask(grant.token, {{name, uri, 1, storage::Sha256(uri), 1}}));
}

std::string CoordinatorScript::Rollback(Process& process, int64_t bad, int64_t through) {
  jobs::RollbackRequest request{
      .before_step = bad, .through_step = through, .reason = "LOSS_EXPLODED", .message = "script"};
  if (through > 0) request.evidence_uri = fmt::format("{}/evidence/{}.json", process.grant.write_prefix, through);
  const auto rollback = core_->RollBackTask(process.grant.token, request);
  if (!rollback.ok()) return Result(rollback);
  if (!*rollback) return "failed";
  const std::string to = fmt::format("to={}", (*rollback)->to_step);
  return (*rollback)->skipped.steps > 0 ? fmt::format("{} skip={}", to, Text((*rollback)->skipped)) : to;
}

std::string CoordinatorScript::ShowTask(const std::string& task_id) {
  const auto view = core_->GetJob(jobs::JobIdOf(task_id));
  const jobs::Task* task = view.ok() ? jobs::FindTask(view->record, task_id) : nullptr;
  if (task == nullptr) return "none";
  return fmt::format("{} attempt={} failures={} step={}", jobs::ToString(task->state), task->attempt, task->failures,
                     task->committed_step);
}

std::string CoordinatorScript::ShowCheckpoints(const std::string& task_id) {
  const auto rows = store_->Checkpoints(task_id);
  if (!rows.ok()) return Result(rows);
  std::vector<std::string> texts;
  for (const store::CheckpointRow& row : *rows) {
    const char* state = row.state == store::CheckpointState::kCommitted  ? "COMMITTED"
                        : row.state == store::CheckpointState::kDeleting ? "DELETING"
                                                                         : "SUPERSEDED";
    texts.push_back(fmt::format("{}:{}", row.checkpoint.step, state));
  }
  return fmt::format("{}", fmt::join(texts, ","));
}

std::string CoordinatorScript::ShowErrors(const std::string& task_id) {
  const auto view = core_->GetJob(jobs::JobIdOf(task_id));
  if (!view.ok()) return Result(view);
  const auto errors = view->last_errors.find(task_id);
  if (errors == view->last_errors.end()) return "none";
  std::vector<std::string> texts;
  for (const store::AttemptRow& row : errors->second) {
    const std::string code = row.code.empty() ? std::string(jobs::ToString(row.outcome)) : row.code;
    texts.push_back(fmt::format("{}:{}:{}", row.attempt, row.island_id, code));
  }
  return fmt::format("{}", fmt::join(texts, ","));
}

}  // namespace atl::coordinator
