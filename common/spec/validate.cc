// Validates job specs. Checks run in the order of the fields; the first that fails is reported.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/schedule/generators.h"
#include "common/spec/frozen.h"
#include "common/spec/nearest_name.h"
#include "common/spec/spec_io.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace atl::spec {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
// The limits of model::Validate, which lies in a higher layer: impossible networks are rejected before a job begins.
constexpr int32_t kPositionParts = 4;
constexpr int32_t kMostLearntChannels = 4096;
// A partition task names its files, one for each expert, in one message to the coordinator.
constexpr int32_t kMostExperts = 8192;
// The limit that leases::DecideRegister applies to an island.
constexpr size_t kMostLabelBytes = 4096;

bool IsLowerOrDigit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

absl::Status Required(std::string_view path) {
  return FieldError(path, "REQUIRED_FIELD", "expected a value, found none");
}

absl::Status Range(std::string_view path, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  const std::string expected =
      most == kMaxInt ? fmt::format("at least {}", least) : fmt::format("between {} and {}", least, most);
  return FieldError(path, "OUT_OF_RANGE", fmt::format("expected {}, found {}", expected, value));
}

// [least, most), or [least, most] when `closed`; `open_below` leaves `least` itself out.
absl::Status RealRange(std::string_view path, double value, double least, double most, bool open_below, bool closed) {
  const bool above = open_below ? value > least : value >= least;
  const bool below = closed ? value <= most : value < most;
  if (above && below) return absl::OkStatus();
  return FieldError(path, "OUT_OF_RANGE",
                    fmt::format("expected a number in {}{}, {}{}, found {}", open_below ? "(" : "[", least, most,
                                closed ? "]" : ")", value));
}

absl::Status OneOf(std::string_view path, const std::string& value, const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return absl::OkStatus();
  const std::string nearest = NearestName(value, known);
  return FieldError(path, "UNKNOWN_VALUE",
                    fmt::format("expected one of {}; found '{}'{}", fmt::join(known, ", "), value,
                                nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest)));
}

absl::Status Divides(std::string_view path, int64_t value, std::string_view by_path, int64_t by) {
  if (value % by == 0) return absl::OkStatus();
  return FieldError(path, "NOT_DIVISIBLE", fmt::format("expected a multiple of {} ({}), found {}", by_path, by, value));
}

// Specs are stored, shown and logged: no URI in them has credentials, as s3://KEY:SECRET@bucket/file. They are not
// repeated.
absl::Status ValidateUri(const std::string& path, std::string_view uri) {
  const size_t scheme = uri.find("://");
  if (scheme == std::string_view::npos) return absl::OkStatus();
  const std::string_view rest = uri.substr(scheme + 3);
  const std::string_view authority = rest.substr(0, rest.find('/'));
  // A secret that was not encoded has slashes of its own; a bucket's name has no colon.
  const bool colon = authority.find(':') != std::string_view::npos;
  const bool user = (colon ? rest : authority).find('@') != std::string_view::npos;
  // Keys and signatures; a file's URI has no parameters.
  const size_t query = rest.find('?');
  const bool parameters = query != std::string_view::npos && rest.find('=', query) != std::string_view::npos;
  if (!user && !parameters) return absl::OkStatus();
  return FieldError(path, "CREDENTIALS_IN_URI",
                    fmt::format("expected a URI without credentials, for islands have their own; found {}",
                                user ? "some before an '@'" : "parameters after a '?'"));
}

absl::Status ValidateFeatures(const FeatureSpec& features, const DatasetFacts* dataset) {
  ATOLL_RETURN_IF_ERROR(OneOf("features.kind", features.kind, {"pixels_pca", "column", "torchscript"}));
  if (features.kind == "column") {
    if (features.column.empty()) return Required("features.column");
    if (dataset != nullptr &&
        std::find(dataset->columns.begin(), dataset->columns.end(), features.column) == dataset->columns.end()) {
      return FieldError(
          "features.column", "UNKNOWN_COLUMN",
          fmt::format("expected one of the dataset's columns ({}), found '{}'",
                      dataset->columns.empty() ? "it has none" : fmt::format("{}", fmt::join(dataset->columns, ", ")),
                      features.column));
    }
  }
  if (features.kind == "torchscript" && features.encoder_uri.empty()) return Required("features.encoder_uri");
  ATOLL_RETURN_IF_ERROR(ValidateSha256("features.encoder_sha256", features.encoder_sha256));
  ATOLL_RETURN_IF_ERROR(ValidateUri("features.encoder_uri", features.encoder_uri));
  if (features.kind != "pixels_pca") return absl::OkStatus();
  ATOLL_RETURN_IF_ERROR(Range("features.components", features.components, 1, 65536));
  if (dataset == nullptr) return absl::OkStatus();
  const int64_t pixels = int64_t{dataset->channels} * dataset->height * dataset->width;
  const int64_t most = std::min(pixels, dataset->training_samples);
  if (features.components > most) {
    return FieldError("features.components", "OUT_OF_RANGE",
                      fmt::format("expected at most the dataset's pixels ({}) and training samples ({}), found {}",
                                  pixels, dataset->training_samples, features.components));
  }
  return absl::OkStatus();
}

absl::Status ValidateClustering(const JobSpec& spec, const DatasetFacts* dataset) {
  const ClusterSpec& clustering = spec.clustering;
  ATOLL_RETURN_IF_ERROR(OneOf("clustering.method", clustering.method, {"kmeans", "random"}));
  ATOLL_RETURN_IF_ERROR(Range("clustering.fine_centroids", clustering.fine_centroids, 1, 1 << 20));
  ATOLL_RETURN_IF_ERROR(Range("clustering.fine_iterations", clustering.fine_iterations, 1, 1'000'000));
  ATOLL_RETURN_IF_ERROR(Range("clustering.coarse_iterations", clustering.coarse_iterations, 1, 1'000'000));
  ATOLL_RETURN_IF_ERROR(Range("clustering.batch_size", clustering.batch_size, 1, 1 << 24));
  if (clustering.method == "random") return absl::OkStatus();
  if (clustering.fine_centroids < spec.experts) {
    return FieldError(
        "clustering.fine_centroids", "OUT_OF_RANGE",
        fmt::format("expected at least the experts ({}), found {}", spec.experts, clustering.fine_centroids));
  }
  if (dataset != nullptr && clustering.fine_centroids > dataset->training_samples) {
    return FieldError("clustering.fine_centroids", "OUT_OF_RANGE",
                      fmt::format("expected at most the dataset's training samples ({}), found {}",
                                  dataset->training_samples, clustering.fine_centroids));
  }
  return absl::OkStatus();
}

// `learnt` is the shape of what the model learns: of the images, or of their latents.
absl::Status ValidateModel(const std::string& path, const ModelSpec& model, const SampleShape* learnt) {
  ATOLL_RETURN_IF_ERROR(Range(path + ".patch", model.patch, 1, 1024));
  ATOLL_RETURN_IF_ERROR(Range(path + ".width", model.width, 1, 65536));
  ATOLL_RETURN_IF_ERROR(Range(path + ".depth", model.depth, 1, 1024));
  ATOLL_RETURN_IF_ERROR(Range(path + ".heads", model.heads, 1, 1024));
  ATOLL_RETURN_IF_ERROR(Divides(path + ".width", model.width, path + ".heads", model.heads));
  ATOLL_RETURN_IF_ERROR(Divides(path + ".width", model.width, "the parts of the position embedding", kPositionParts));
  ATOLL_RETURN_IF_ERROR(RealRange(path + ".mlp_ratio", model.mlp_ratio, 0, 64, true, true));
  if (model.mlp_ratio * model.width < 1) {
    return FieldError(
        path + ".mlp_ratio", "OUT_OF_RANGE",
        fmt::format("expected mlp_ratio * width of at least 1, found {} * {}", model.mlp_ratio, model.width));
  }
  if (learnt == nullptr) return absl::OkStatus();
  if ((*learnt)[0] > kMostLearntChannels) {
    return FieldError(path, "OUT_OF_RANGE",
                      fmt::format("expected images, or their latents, of at most {} channels, found {}",
                                  kMostLearntChannels, (*learnt)[0]));
  }
  if ((*learnt)[1] % model.patch != 0 || (*learnt)[2] % model.patch != 0) {
    return FieldError(path + ".patch", "NOT_DIVISIBLE",
                      fmt::format("expected a patch that divides the dataset's images, or their latents ({} x {}), "
                                  "found {}",
                                  (*learnt)[1], (*learnt)[2], model.patch));
  }
  return absl::OkStatus();
}

absl::Status ValidatePrecision(const std::string& path, const PrecisionSpec& precision) {
  // Master weights, sums over replicas and EMA stay in float32; only compute may be narrower.
  ATOLL_RETURN_IF_ERROR(OneOf(path + ".params", precision.params, {"float32"}));
  ATOLL_RETURN_IF_ERROR(OneOf(path + ".compute", precision.compute, {"float32", "bfloat16"}));
  ATOLL_RETURN_IF_ERROR(OneOf(path + ".reduce", precision.reduce, {"float32"}));
  return OneOf(path + ".ema", precision.ema, {"float32"});
}

absl::Status ValidateTraining(const std::string& path, const TrainingSpec& training) {
  if (training.steps == 0) return Required(path + ".steps");
  ATOLL_RETURN_IF_ERROR(Range(path + ".steps", training.steps, 1, kMaxInt));
  ATOLL_RETURN_IF_ERROR(Range(path + ".batch_size", training.batch_size, 1, kMaxBatchSize));
  ATOLL_RETURN_IF_ERROR(RealRange(path + ".learning_rate", training.learning_rate, 0, 100, true, true));
  if (training.warmup_steps < 0 || training.warmup_steps > training.steps) {
    return FieldError(
        path + ".warmup_steps", "OUT_OF_RANGE",
        fmt::format("expected between 0 and {}.steps ({}), found {}", path, training.steps, training.warmup_steps));
  }
  ATOLL_RETURN_IF_ERROR(
      OneOf(path + ".learning_rate_schedule", training.learning_rate_schedule, {"constant", "cosine", "linear"}));
  ATOLL_RETURN_IF_ERROR(RealRange(path + ".weight_decay", training.weight_decay, 0, 100, false, true));
  ATOLL_RETURN_IF_ERROR(RealRange(path + ".beta1", training.beta1, 0, 1, false, false));
  ATOLL_RETURN_IF_ERROR(RealRange(path + ".beta2", training.beta2, 0, 1, false, false));
  ATOLL_RETURN_IF_ERROR(RealRange(path + ".epsilon", training.epsilon, 0, 1, true, true));
  ATOLL_RETURN_IF_ERROR(RealRange(path + ".clip_norm", training.clip_norm, 0, 1e12, false, true));
  ATOLL_RETURN_IF_ERROR(RealRange(path + ".ema_decay", training.ema_decay, 0, 1, false, false));
  ATOLL_RETURN_IF_ERROR(RealRange(path + ".class_dropout", training.class_dropout, 0, 1, false, true));
  ATOLL_RETURN_IF_ERROR(
      RealRange(path + ".self_conditioning_rate", training.self_conditioning_rate, 0, 1, false, true));
  const double factor = training.explosion_factor;
  if (!(factor == 0 || (factor > 1 && factor <= 1e12))) {
    return FieldError(path + ".explosion_factor", "OUT_OF_RANGE",
                      fmt::format("expected 0 (never) or a number in (1, 1e12], found {}", factor));
  }
  ATOLL_RETURN_IF_ERROR(Range(path + ".checkpoint_every", training.checkpoint_every, 1, kMaxInt));
  ATOLL_RETURN_IF_ERROR(Range(path + ".keep_checkpoints", training.keep_checkpoints, 1, 1'000'000));
  ATOLL_RETURN_IF_ERROR(Range(path + ".milestone_every", training.milestone_every, 0, kMaxInt));
  return ValidatePrecision(path + ".precision", training.precision);
}

absl::Status ValidateStages(const PipelineSpec& pipeline, const std::string& model_path, const ModelSpec& model) {
  if (pipeline.stages <= LayerCount(model)) return absl::OkStatus();
  return FieldError("pipeline.stages", "OUT_OF_RANGE",
                    fmt::format("expected at most the layers of {} ({}: embedding, {} blocks, head), found {}",
                                model_path, LayerCount(model), model.depth, pipeline.stages));
}

absl::Status ValidatePipeline(const JobSpec& spec) {
  const PipelineSpec& pipeline = spec.pipeline;
  const std::vector<std::string_view> schedules = schedule::GeneratorNames();
  std::vector<std::string> names(schedules.begin(), schedules.end());
  names.emplace_back("auto");
  ATOLL_RETURN_IF_ERROR(OneOf("pipeline.schedule", pipeline.schedule, names));
  ATOLL_RETURN_IF_ERROR(Range("pipeline.stages", pipeline.stages, 0, kMaxInt));
  // With "auto" the planner takes a schedule that suits the stages.
  const auto generator = schedule::FindGenerator(pipeline.schedule);
  if (generator.ok() && pipeline.stages % generator->stages_per_rank != 0) {
    return FieldError("pipeline.stages", "OUT_OF_RANGE",
                      fmt::format("expected a multiple of {}, the stages that {} puts on every rank, found {}",
                                  generator->stages_per_rank, pipeline.schedule, pipeline.stages));
  }
  ATOLL_RETURN_IF_ERROR(ValidateStages(pipeline, "model", spec.model));
  ATOLL_RETURN_IF_ERROR(ValidateStages(pipeline, "router_model", spec.router_model));
  ATOLL_RETURN_IF_ERROR(Range("pipeline.micro_batches", pipeline.micro_batches, 0, kMaxBatchSize));
  ATOLL_RETURN_IF_ERROR(ParseMemory("pipeline.memory", pipeline.memory).status());
  ATOLL_RETURN_IF_ERROR(Range("pipeline.replicas", pipeline.replicas, 0, 1 << 16));
  ATOLL_RETURN_IF_ERROR(OneOf("pipeline.recompute", pipeline.recompute, {"auto", "never", "always"}));
  ATOLL_RETURN_IF_ERROR(OneOf("pipeline.fill", pipeline.fill, {"auto", "never"}));
  ATOLL_RETURN_IF_ERROR(OneOf("pipeline.frozen_cache", pipeline.frozen_cache, {"auto", "never", "always"}));
  // A count that the planner chooses divides the batch anyway.
  const int64_t parts = int64_t{std::max(1, pipeline.micro_batches)} * std::max(1, pipeline.replicas);
  const std::string_view by =
      pipeline.replicas > 1 ? "pipeline.micro_batches x pipeline.replicas" : "pipeline.micro_batches";
  ATOLL_RETURN_IF_ERROR(Divides("training.batch_size", spec.training.batch_size, by, parts));
  return Divides("router_training.batch_size", spec.router_training.batch_size, by, parts);
}

absl::Status ValidateRequirements(const Requirements& requirements) {
  ATOLL_RETURN_IF_ERROR(Range("requirements.min_ranks", requirements.min_ranks, 1, 1 << 16));
  if (!requirements.device_kind.empty()) {
    ATOLL_RETURN_IF_ERROR(OneOf("requirements.device_kind", requirements.device_kind, {"cpu", "cuda"}));
  }
  if (requirements.min_memory_bytes < 0) {
    return FieldError("requirements.min_memory_bytes", "OUT_OF_RANGE",
                      fmt::format("expected at least 0, found {}", requirements.min_memory_bytes));
  }
  ATOLL_RETURN_IF_ERROR(Range("requirements.labels", static_cast<int64_t>(requirements.labels.size()), 0, 64));
  size_t bytes = 0;
  for (const auto& [name, value] : requirements.labels) bytes += name.size() + value.size();
  if (bytes <= kMostLabelBytes) return absl::OkStatus();
  return FieldError("requirements.labels", "OUT_OF_RANGE",
                    fmt::format("expected at most {} bytes of names and values, as islands may have, found {}",
                                kMostLabelBytes, bytes));
}

}  // namespace

absl::Status ValidateName(std::string_view path, std::string_view name) {
  constexpr size_t kLongest = 63;
  if (name.empty()) return Required(path);
  const bool good = name.size() <= kLongest && IsLowerOrDigit(name.front()) && IsLowerOrDigit(name.back()) &&
                    std::all_of(name.begin(), name.end(), [](char c) { return IsLowerOrDigit(c) || c == '-'; });
  if (good) return absl::OkStatus();
  return FieldError(
      path, "INVALID_NAME",
      fmt::format("expected 1 to {} lower-case letters, digits and '-', starting and ending with a letter "
                  "or digit; found '{}'",
                  kLongest, name.substr(0, 2 * kLongest)));
}

absl::StatusOr<int64_t> ParseMemory(std::string_view path, std::string_view text) {
  if (text == "auto") return 0;
  constexpr std::array<std::pair<std::string_view, int64_t>, 8> kUnits{{{"kB", 1'000},
                                                                        {"MB", 1'000'000},
                                                                        {"GB", 1'000'000'000},
                                                                        {"TB", 1'000'000'000'000},
                                                                        {"KiB", int64_t{1} << 10},
                                                                        {"MiB", int64_t{1} << 20},
                                                                        {"GiB", int64_t{1} << 30},
                                                                        {"TiB", int64_t{1} << 40}}};
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view rest = text.substr(static_cast<size_t>(end - text.data()));
  int64_t factor = rest.empty() ? 1 : 0;
  for (const auto& [name, bytes] : kUnits) {
    if (rest == name) factor = bytes;
  }
  if (error == std::errc() && number > 0 && factor > 0 && number <= std::numeric_limits<int64_t>::max() / factor) {
    return number * factor;
  }
  return FieldError(
      path, "INVALID_MEMORY",
      fmt::format("expected auto, or bytes such as 24000000000, 24GB or 22GiB; found '{}'", text.substr(0, 40)));
}

int32_t LayerCount(const ModelSpec& model) {
  return model.depth + 2;
}

int32_t LeastRanks(const JobSpec& spec) {
  return std::max(spec.requirements.min_ranks, spec.pipeline.replicas);
}

absl::Status Validate(const JobSpec& spec, const DatasetFacts* dataset) {
  ATOLL_RETURN_IF_ERROR(ValidateName("model_name", spec.model_name));
  ATOLL_RETURN_IF_ERROR(ValidateName("dataset", spec.dataset));
  if (spec.experts == 0) return Required("experts");
  ATOLL_RETURN_IF_ERROR(Range("experts", spec.experts, 1, kMostExperts));
  if (dataset != nullptr && spec.experts > dataset->training_samples) {
    return FieldError("experts", "OUT_OF_RANGE",
                      fmt::format("expected at most the dataset's training samples ({}), found {}",
                                  dataset->training_samples, spec.experts));
  }
  ATOLL_RETURN_IF_ERROR(ValidateFeatures(spec.features, dataset));
  ATOLL_RETURN_IF_ERROR(ValidateClustering(spec, dataset));
  // Before all that may repeat a URI.
  for (const FrozenFileField& file : FrozenFileFields(spec.frozen)) {
    ATOLL_RETURN_IF_ERROR(ValidateUri(file.field, file.uri));
  }
  // Checked before the models, which learn the components' outputs.
  const SampleShape image =
      dataset == nullptr ? SampleShape{} : SampleShape{dataset->channels, dataset->height, dataset->width};
  ATOLL_RETURN_IF_ERROR(ValidateFrozen(spec.frozen, dataset == nullptr ? nullptr : &image,
                                       dataset == nullptr ? 0 : dataset->classes, spec.model.width));
  SampleShape learnt;
  if (dataset != nullptr) {
    ATOLL_ASSIGN_OR_RETURN(learnt, LearntShape(spec.frozen, image));
  }
  const SampleShape* known = dataset == nullptr ? nullptr : &learnt;
  ATOLL_RETURN_IF_ERROR(ValidateModel("model", spec.model, known));
  ATOLL_RETURN_IF_ERROR(ValidateTraining("training", spec.training));
  ATOLL_RETURN_IF_ERROR(ValidateModel("router_model", spec.router_model, known));
  ATOLL_RETURN_IF_ERROR(ValidateTraining("router_training", spec.router_training));
  if (spec.router_model.self_conditioning) {
    return FieldError("router_model.self_conditioning", "OUT_OF_RANGE",
                      "expected false (a router network makes no estimate of the sample), found true");
  }
  ATOLL_RETURN_IF_ERROR(ValidatePipeline(spec));
  ATOLL_RETURN_IF_ERROR(ValidateRequirements(spec.requirements));
  ATOLL_RETURN_IF_ERROR(Range("priority", spec.priority, -1'000'000, 1'000'000));
  return Range("failure_budget", spec.failure_budget, 1, 1'000'000);
}

}  // namespace atl::spec
