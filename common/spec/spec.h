// The job specification of a user, as plain structs. Pure: no proto, no files, no clock.
//
// One visitor per struct names its fields; the YAML reader, the writer and common/wire's proto conversion all go
// through it, so that a field is named once. Field names equal those of proto/atoll/job/v1/job.proto.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

namespace atl::spec {

inline constexpr int32_t kMaxBatchSize = 1 << 20;

struct PrecisionSpec {
  std::string params = "float32";
  std::string compute = "float32";
  std::string reduce = "float32";
  std::string ema = "float32";
  bool operator==(const PrecisionSpec&) const = default;
};

struct FeatureSpec {
  std::string kind = "pixels_pca";  // pixels_pca, column, torchscript
  int32_t components = 32;
  std::string column;
  std::string encoder_uri;
  std::string encoder_sha256;  // lower-case hex; filled in at submission
  bool operator==(const FeatureSpec&) const = default;
};

struct ClusterSpec {
  std::string method = "kmeans";  // kmeans, random
  int32_t fine_centroids = 64;
  int32_t fine_iterations = 50;
  int32_t coarse_iterations = 100;
  int32_t batch_size = 1024;
  bool normalize = false;
  bool operator==(const ClusterSpec&) const = default;
};

struct ModelSpec {
  int32_t patch = 2;
  int32_t width = 96;
  int32_t depth = 6;
  int32_t heads = 4;
  double mlp_ratio = 4.0;
  bool self_conditioning = false;  // also sees its own estimate of the sample; not for router networks
  bool operator==(const ModelSpec&) const = default;
};

struct TrainingSpec {
  int32_t steps = 0;  // required
  int32_t batch_size = 64;
  double learning_rate = 1e-3;
  int32_t warmup_steps = 0;
  std::string learning_rate_schedule = "constant";  // constant, cosine, linear
  double weight_decay = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double clip_norm = 1.0;
  double ema_decay = 0.999;
  double class_dropout = 0.1;
  int32_t checkpoint_every = 100;
  int32_t keep_checkpoints = 2;
  int32_t milestone_every = 0;
  PrecisionSpec precision;
  bool flip = false;
  double self_conditioning_rate = 0.5;  // share of steps whose self-conditioned model sees its estimate
  double explosion_factor = 10.0;       // times the median of the latest losses: training diverged; 0: no check
  bool operator==(const TrainingSpec&) const = default;
};

struct PipelineSpec {
  std::string schedule = "1f1b";      // one of schedule::GeneratorNames(), or auto
  int32_t stages = 0;                 // 0: as many as are useful; else a multiple of the schedule's stages per rank
  int32_t micro_batches = 4;          // of one replica; 0: the planner's choice
  std::string memory = "auto";        // or bytes per rank: see ParseMemory
  int32_t replicas = 1;               // 0: the planner's choice
  std::string recompute = "auto";     // auto, never, always
  std::string fill = "auto";          // auto, never
  std::string frozen_cache = "auto";  // auto, never, always
  bool operator==(const PipelineSpec&) const = default;
};

// One layer of a frozen component.
struct FrozenLayerSpec {
  std::string kind;   // convolution, block, norm, mean, linear, embedding
  int32_t width = 0;  // output channels or features; block, norm and mean keep those of the input
  int32_t kernel = 3;
  int32_t stride = 1;
  std::string activation = "none";  // none, relu, silu, gelu, tanh
  bool operator==(const FrozenLayerSpec&) const = default;
};

// A part of the model that is not trained, as a list of layers: native ones, or one TorchScript file per layer.
struct FrozenSpec {
  std::string name;             // required
  std::string input = "image";  // image, label, or the name of an earlier component
  std::string output = "none";  // latent, condition, none
  std::vector<FrozenLayerSpec> layers;
  std::vector<std::string> torchscript;
  std::string weights;         // safetensors of the native layers; empty: drawn from the job's seed
  std::vector<int32_t> shape;  // of the output, per sample; empty: that of the native layers
  // SHA-256 of each of its files (FilesOf), as FeatureSpec::encoder_sha256.
  std::vector<std::string> file_sha256;
  bool operator==(const FrozenSpec&) const = default;
};

struct Requirements {
  int32_t min_ranks = 1;
  std::string device_kind;
  int64_t min_memory_bytes = 0;
  std::map<std::string, std::string> labels;
  bool operator==(const Requirements&) const = default;
};

struct JobSpec {
  std::string model_name;  // required
  std::string dataset;     // required
  int32_t experts = 0;     // required
  uint64_t seed = 0;
  FeatureSpec features;
  ClusterSpec clustering;
  ModelSpec model;
  TrainingSpec training;
  ModelSpec router_model{.patch = 2, .width = 64, .depth = 4, .heads = 4, .mlp_ratio = 4.0};
  // As text and on the wire, an unset field of router_training takes the value of the same field of `training`
  // (common/spec's reader and common/wire both start from a copy of it).
  TrainingSpec router_training;
  PipelineSpec pipeline;
  Requirements requirements;
  int32_t priority = 0;
  int32_t failure_budget = 3;
  std::vector<FrozenSpec> frozen;
  bool operator==(const JobSpec&) const = default;
};

// Visit(v, s) calls v("field", s.field) for every field, in the proto's order. S is the struct or its const form.
template <typename V, typename S>
requires std::is_same_v<std::remove_const_t<S>, PrecisionSpec>
void Visit(V&& v, S& s) {
  v("params", s.params);
  v("compute", s.compute);
  v("reduce", s.reduce);
  v("ema", s.ema);
}

template <typename V, typename S>
requires std::is_same_v<std::remove_const_t<S>, FeatureSpec>
void Visit(V&& v, S& s) {
  v("kind", s.kind);
  v("components", s.components);
  v("column", s.column);
  v("encoder_uri", s.encoder_uri);
  v("encoder_sha256", s.encoder_sha256);
}

template <typename V, typename S>
requires std::is_same_v<std::remove_const_t<S>, ClusterSpec>
void Visit(V&& v, S& s) {
  v("method", s.method);
  v("fine_centroids", s.fine_centroids);
  v("fine_iterations", s.fine_iterations);
  v("coarse_iterations", s.coarse_iterations);
  v("batch_size", s.batch_size);
  v("normalize", s.normalize);
}

template <typename V, typename S>
requires std::is_same_v<std::remove_const_t<S>, ModelSpec>
void Visit(V&& v, S& s) {
  v("patch", s.patch);
  v("width", s.width);
  v("depth", s.depth);
  v("heads", s.heads);
  v("mlp_ratio", s.mlp_ratio);
  v("self_conditioning", s.self_conditioning);
}

template <typename V, typename S>
requires std::is_same_v<std::remove_const_t<S>, TrainingSpec>
void Visit(V&& v, S& s) {
  v("steps", s.steps);
  v("batch_size", s.batch_size);
  v("learning_rate", s.learning_rate);
  v("warmup_steps", s.warmup_steps);
  v("learning_rate_schedule", s.learning_rate_schedule);
  v("weight_decay", s.weight_decay);
  v("beta1", s.beta1);
  v("beta2", s.beta2);
  v("epsilon", s.epsilon);
  v("clip_norm", s.clip_norm);
  v("ema_decay", s.ema_decay);
  v("class_dropout", s.class_dropout);
  v("checkpoint_every", s.checkpoint_every);
  v("keep_checkpoints", s.keep_checkpoints);
  v("milestone_every", s.milestone_every);
  v("precision", s.precision);
  v("flip", s.flip);
  v("self_conditioning_rate", s.self_conditioning_rate);
  v("explosion_factor", s.explosion_factor);
}

template <typename V, typename S>
requires std::is_same_v<std::remove_const_t<S>, PipelineSpec>
void Visit(V&& v, S& s) {
  v("schedule", s.schedule);
  v("stages", s.stages);
  v("micro_batches", s.micro_batches);
  v("memory", s.memory);
  v("replicas", s.replicas);
  v("recompute", s.recompute);
  v("fill", s.fill);
  v("frozen_cache", s.frozen_cache);
}

template <typename V, typename S>
requires std::is_same_v<std::remove_const_t<S>, FrozenLayerSpec>
void Visit(V&& v, S& s) {
  v("kind", s.kind);
  v("width", s.width);
  v("kernel", s.kernel);
  v("stride", s.stride);
  v("activation", s.activation);
}

template <typename V, typename S>
requires std::is_same_v<std::remove_const_t<S>, FrozenSpec>
void Visit(V&& v, S& s) {
  v("name", s.name);
  v("input", s.input);
  v("output", s.output);
  v("layers", s.layers);
  v("torchscript", s.torchscript);
  v("weights", s.weights);
  v("shape", s.shape);
  v("file_sha256", s.file_sha256);
}

template <typename V, typename S>
requires std::is_same_v<std::remove_const_t<S>, Requirements>
void Visit(V&& v, S& s) {
  v("min_ranks", s.min_ranks);
  v("device_kind", s.device_kind);
  v("min_memory_bytes", s.min_memory_bytes);
  v("labels", s.labels);
}

template <typename V, typename S>
requires std::is_same_v<std::remove_const_t<S>, JobSpec>
void Visit(V&& v, S& s) {
  v("model_name", s.model_name);
  v("dataset", s.dataset);
  v("experts", s.experts);
  v("seed", s.seed);
  v("features", s.features);
  v("clustering", s.clustering);
  v("model", s.model);
  v("training", s.training);
  v("router_model", s.router_model);
  v("router_training", s.router_training);
  v("pipeline", s.pipeline);
  v("requirements", s.requirements);
  v("priority", s.priority);
  v("failure_budget", s.failure_budget);
  v("frozen", s.frozen);
}

}  // namespace atl::spec
