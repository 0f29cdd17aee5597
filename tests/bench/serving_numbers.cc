// Compares the lanes' answers with an independent PyTorch implementation on the same weights
// (tests/peers/torch_dit.py).
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "absl/synchronization/notification.h"
#include "common/base/clock.h"
#include "common/base/counter_random.h"
#include "common/base/status_macros.h"
#include "common/formats/model_index.h"
#include "common/storage/safetensors.h"
#include "inference/local/local_experts.h"
#include "tests/bench/figures.h"
#include "tests/bench/serving_cases.h"

namespace atl::bench {
namespace {

constexpr int64_t kRows = 8;

absl::StatusOr<std::vector<float>> Ask(router::ExpertLane* lane, std::shared_ptr<const router::Evaluation> batch) {
  absl::Notification over;
  absl::StatusOr<router::EvaluationAnswer> answer;
  lane->Start(std::move(batch), [&](absl::StatusOr<router::EvaluationAnswer> given) {
    answer = std::move(given);
    over.Notify();
  });
  over.WaitForNotification();
  if (!answer.ok()) return answer.status();
  return std::move(answer->values);
}

template <typename T>
std::string_view BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// The probe of docs/formats.md: noise at eight times, and what a lane answers for every network.
absl::StatusOr<std::string> Probe(Published* published) {
  const ServingModel& model = published->model;
  ATOLL_ASSIGN_OR_RETURN(const auto files,
                         router::OpenVersion(published->store.get(), published->uri, published->digest));
  ATOLL_ASSIGN_OR_RETURN(const auto experts, router::LocalExperts::Create({.threads = 1}, Clock::Real()));
  ATOLL_ASSIGN_OR_RETURN(const auto version, experts->Host(files));
  router::Rows rows{.count = kRows};
  rows.x.resize(static_cast<size_t>(kRows * model.channels * model.side * model.side));
  CounterRandom(/*seed=*/8, RandomPurpose::kSampleNoise, /*step=*/0, /*sample=*/0).Normal(rows.x);
  for (int64_t i = 0; i < kRows; ++i) {
    rows.t.push_back(static_cast<float>(kRows - i) / static_cast<float>(kRows));
    rows.classes.push_back(i == 0 ? model.classes : i);  // the null class too
  }
  std::vector<std::vector<float>> answers;
  for (int32_t network = 0; network <= model.experts; ++network) {
    auto batch = std::make_shared<router::Evaluation>();
    batch->id = network + 1;
    batch->network = version->network(network == model.experts ? kRouterNetwork : network);
    batch->channels = model.channels;
    batch->height = model.side;
    batch->width = model.side;
    batch->rows = rows;
    ATOLL_ASSIGN_OR_RETURN(std::vector<float> answer, Ask(experts->lanes().front().get(), std::move(batch)));
    answers.push_back(std::move(answer));
  }
  const std::vector<int64_t> shape = {kRows, model.channels, model.side, model.side};
  std::vector<storage::TensorView> tensors = {
      {.name = "x", .dtype = "F32", .shape = shape, .bytes = BytesOf(rows.x)},
      {.name = "t", .dtype = "F32", .shape = {kRows}, .bytes = BytesOf(rows.t)},
      {.name = "class", .dtype = "I64", .shape = {kRows}, .bytes = BytesOf(rows.classes)},
      {.name = "posterior", .dtype = "F32", .shape = {kRows, model.experts}, .bytes = BytesOf(answers.back())}};
  for (int k = 0; k < model.experts; ++k) {
    tensors.push_back({.name = fmt::format("velocity.{}", k),
                       .dtype = "F32",
                       .shape = shape,
                       .bytes = BytesOf(answers[static_cast<size_t>(k)])});
  }
  return storage::SerializeSafetensors(std::move(tensors), {});
}

// The lines of a command that must end well.
absl::StatusOr<std::vector<std::string>> LinesOf(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return absl::InternalError("popen: " + command);
  std::vector<std::string> lines;
  char buffer[4096];
  while (std::fgets(buffer, sizeof(buffer), pipe) != nullptr) lines.emplace_back(buffer);
  if (pclose(pipe) != 0) return absl::InternalError("failed: " + command);
  return lines;
}

}  // namespace

absl::Status RunNumbers(const Settings& settings, Published* published) {
  if (settings.peer_python.empty()) return absl::InvalidArgumentError("the case numbers needs --peer-python");
  ATOLL_ASSIGN_OR_RETURN(const std::string probe, Probe(published));
  storage::TemporaryStore store;
  const std::string uri = storage::ModelFolderUri(*store.get(), published->model.name, "probed");
  ATOLL_RETURN_IF_ERROR(Publish(published->model, published->networks, store.get(), uri, probe).status());
  const std::string script = std::filesystem::path(settings.peer_script).replace_filename("torch_dit.py");
  ATOLL_ASSIGN_OR_RETURN(
      const std::vector<std::string> lines,
      LinesOf(fmt::format("{} {} {}", settings.peer_python, script, uri.substr(std::string("file://").size()))));
  double velocity = 0;
  double posterior = 0;
  double to_float64 = 0;
  double peer_to_float64 = 0;
  for (const std::string& line : lines) {
    std::fputs(line.c_str(), stderr);
    const nlohmann::json network = nlohmann::json::parse(line);
    double& worst = network.at("network") == "router" ? posterior : velocity;
    worst = std::max(worst, network.at("relative").get<double>());
    to_float64 = std::max(to_float64, network.at("relative_float64").get<double>());
    peer_to_float64 = std::max(peer_to_float64, network.at("peer_float64").get<double>());
  }
  PrintFigure("same-numbers", "velocity", velocity, "of its norm", AtMost(1e-5));
  PrintFigure("same-numbers", "posterior", posterior, "of its norm", AtMost(1e-5));
  PrintFigure("same-numbers", "against_float64", to_float64, "of its norm");
  PrintFigure("same-numbers", "peer_against_float64", peer_to_float64, "of its norm");
  return absl::OkStatus();
}

}  // namespace atl::bench
