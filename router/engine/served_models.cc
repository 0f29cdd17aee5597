// The engine's models: what is served, offered or expected, and which version a request gets.
#include "common/base/errors.h"
#include "common/base/quoted.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "router/engine/engine.h"

namespace atl::router {

void Engine::Serve(std::shared_ptr<const ServedVersion> version) {
  // The replaced version is dropped after the lock: it may be the last reference to gigabytes.
  std::shared_ptr<const ServedVersion> replaced;
  absl::MutexLock lock(&mutex_);
  replaced = std::exchange(models_[version->info.model].serving, version);
}

void Engine::Expect(const std::string& model) {
  absl::MutexLock lock(&mutex_);
  expected_.insert(model);
}

void Engine::Offer(std::shared_ptr<const ServedVersion> version) {
  std::shared_ptr<const ServedVersion> replaced;
  absl::MutexLock lock(&mutex_);
  replaced = std::exchange(models_[version->info.model].offered[version->info.version], version);
}

void Engine::Withdraw(const std::string& model, const std::string& version) {
  std::shared_ptr<const ServedVersion> withdrawn;
  absl::MutexLock lock(&mutex_);
  const auto found = models_.find(model);
  if (found == models_.end()) return;
  const auto offered = found->second.offered.find(version);
  if (offered == found->second.offered.end()) return;
  withdrawn = std::move(offered->second);
  found->second.offered.erase(offered);
}

absl::StatusOr<const Engine::ServedModel*> Engine::FindModel(const std::string& name) {
  std::vector<const ServedModel*> serving;
  std::string known;
  for (const auto& [served, entry] : models_) {
    if (entry.serving == nullptr) continue;
    if (served == name) return &entry;
    serving.push_back(&entry);
    known += (known.empty() ? "'" : ", '") + served + "'";
  }
  if (name.empty() && serving.size() == 1) return serving.front();
  if (name.empty() ? serving.empty() && !expected_.empty() : expected_.contains(name)) {
    const std::string model = name.empty() ? std::string("the model") : "model " + Quoted(name);
    return MakeErrorWithField(absl::StatusCode::kUnavailable, "MODEL_LOADING", "model",
                              fmt::format("{} is published and not loaded here yet; try again", model));
  }
  if (serving.empty()) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "NO_MODEL",
                     "no model version is served yet; publish one, or wait until it is loaded");
  }
  if (name.empty()) {
    return FieldError("model", "MODEL_REQUIRED", fmt::format("expected one of {}, found none named", known));
  }
  return MakeErrorWithField(absl::StatusCode::kNotFound, "UNKNOWN_MODEL", "model",
                            fmt::format("model: expected one of {}, found {}", known, Quoted(name)));
}

absl::StatusOr<std::shared_ptr<const ServedVersion>> Engine::FindVersion(const SampleRequest& request) {
  ATOLL_ASSIGN_OR_RETURN(const ServedModel* model, FindModel(request.model));
  const SamplerInfo& serving = model->serving->info;
  if (request.version.empty() || request.version == serving.version) return model->serving;
  if (const auto offered = model->offered.find(request.version); offered != model->offered.end()) {
    return offered->second;
  }
  std::string others;
  for (const auto& [version, entry] : model->offered) others += fmt::format(", or '{}'", version);
  return MakeErrorWithField(absl::StatusCode::kNotFound, "UNKNOWN_VERSION", "version",
                            fmt::format("version: expected none or '{}', which model '{}' serves{}, found {}",
                                        serving.version, serving.model, others, Quoted(request.version)));
}

absl::StatusOr<SamplerInfo> Engine::Info(const std::string& model) {
  absl::MutexLock lock(&mutex_);
  ATOLL_ASSIGN_OR_RETURN(const ServedModel* served, FindModel(model));
  return served->serving->info;
}

std::vector<std::string> Engine::Versions(const std::string& model) {
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<const ServedModel*> served = FindModel(model);
  if (!served.ok()) return {};
  std::vector<std::string> versions = {(*served)->serving->info.version};
  for (const auto& [version, entry] : (*served)->offered) versions.push_back(version);
  return versions;
}

std::vector<SamplerInfo> Engine::Served() {
  absl::MutexLock lock(&mutex_);
  std::vector<SamplerInfo> served;
  for (const auto& [name, model] : models_) {
    if (model.serving != nullptr) served.push_back(model.serving->info);
  }
  return served;
}

}  // namespace atl::router
