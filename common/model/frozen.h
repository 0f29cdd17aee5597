// Frozen components: parts of a model that run without training, as lists of layers. Each layer can run by itself, over
// any part of the batch.
//
// Equal bits need equal batch shapes: kernels choose their algorithm by size, so a layer over half a batch may differ
// from the same rows of the whole by rounding (about 1e-6 of the values). A plan fixes the shapes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/spec/frozen.h"
#include "common/spec/spec.h"

namespace atl::model {

// One layer; records no gradient. Samples first: [n, …] in, [n, …] out; a class is int64 [n].
class FrozenLayer {
 public:
  virtual ~FrozenLayer() = default;
  // INVALID_ARGUMENT (FROZEN_LAYER_FAILED) with the layer's field or file if it cannot read `x`.
  virtual absl::StatusOr<at::Tensor> Forward(const at::Tensor& x) = 0;
  // Bytes of its parameters and buffers.
  virtual int64_t parameter_bytes() const = 0;
};

// A component, with the layers that run here. Not thread-safe (TorchScript is not).
class FrozenComponent {
 public:
  // The output of a layer, per sample.
  struct Output {
    std::vector<int64_t> shape;
    at::ScalarType dtype = at::kFloat;
    int64_t bytes = 0;
  };

  const spec::FrozenSpec& spec() const { return spec_; }
  int32_t layer_count() const { return static_cast<int32_t>(layers_.size()); }
  bool Holds(int32_t layer) const { return layers_[static_cast<size_t>(layer)] != nullptr; }
  const Output& OutputOf(int32_t layer) const { return outputs_[static_cast<size_t>(layer)]; }
  // Returns 0 for a layer that is not kept.
  int64_t ParameterBytes(int32_t layer) const;
  // Runs layers [first, end) over the samples of `x`; the result is contiguous.
  absl::StatusOr<at::Tensor> Run(const at::Tensor& x, int32_t first, int32_t end) const;
  // Frees layers outside [first, end), which no longer run.
  void Keep(int32_t first, int32_t end);

 private:
  friend absl::StatusOr<std::vector<FrozenComponent>> LoadFrozen(const struct FrozenSource& source);
  spec::FrozenSpec spec_;
  std::vector<std::shared_ptr<FrozenLayer>> layers_;
  std::vector<Output> outputs_;
};

// The specification and files of components.
struct FrozenSource {
  std::vector<spec::FrozenSpec> components;
  spec::SampleShape image;
  int32_t classes = 0;
  uint64_t seed = 0;  // the job's seed: every expert and the router network get the same weights
  // The bytes of every TorchScript and weights file, by URI.
  std::shared_ptr<const std::map<std::string, std::string>> files;
  std::string device = "cpu";
  // By component: the layers [first, end) that stay loaded after the trial run; each other layer is freed after its
  // trial. Empty: all stay.
  std::vector<std::pair<int32_t, int32_t>> kept;
};

// Loads every component and runs it once, layer by layer, over one sample. The trial rejects invalid components and
// finds every layer's output, kept or not. INVALID_ARGUMENT with the field, the file, the expected and the found shape:
// FROZEN_FILE for an invalid file, FROZEN_LAYER_FAILED for a layer that fails on its input, FROZEN_SHAPE for an output
// that does not fit its use.
absl::StatusOr<std::vector<FrozenComponent>> LoadFrozen(const FrozenSource& source);

}  // namespace atl::model
