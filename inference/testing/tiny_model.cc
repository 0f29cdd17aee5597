#include "inference/testing/tiny_model.h"

#include <ATen/ATen.h>

#include "common/formats/model_index.h"
#include "common/model/weights_testing.h"
#include "fmt/format.h"
#include "inference/testing/published_tiny_model.h"

namespace atl::router {
namespace {

model::DitConfig TinyConfig(int64_t outputs, bool self_conditioning) {
  return {.channels = 1,
          .height = 4,
          .width_pixels = 4,
          .classes = 4,
          .patch = 2,
          .width = 16,
          .depth = 2,
          .heads = 2,
          .mlp_ratio = 2.0,
          .outputs = outputs,
          .self_conditioning = self_conditioning};
}

}  // namespace

model::LoadedModel TinyNetwork(int64_t outputs, uint64_t seed, bool self_conditioning) {
  model::LoadedModel network{.config = TinyConfig(outputs, self_conditioning)};
  network.layers = model::BuildLayers(network.config, seed, 0, model::LayerCount(network.config));
  const at::NoGradGuard no_grad;
  at::Generator generator = at::detail::createCPUGenerator(seed);
  for (const auto& layer : network.layers) {
    for (const model::NamedTensor& parameter : layer->parameters()) {
      parameter.tensor.add_(at::randn(parameter.tensor.sizes(), generator, at::kFloat), 0.2);
    }
  }
  return network;
}

Networks TinyNetworks(bool self_conditioning) {
  Networks networks;
  for (int32_t expert = 0; expert < kTinyExperts; ++expert) {
    networks.experts.push_back(TinyNetwork(0, 10 + expert, self_conditioning));
  }
  networks.router = TinyNetwork(kTinyExperts, 99);
  return networks;
}

std::string PublishTinyModel(storage::BlobStore* store, const std::string& folder_uri, bool self_conditioning) {
  return PublishNetworks(store, folder_uri, TinyNetworks(self_conditioning), self_conditioning);
}

std::string PublishNetworks(storage::BlobStore* store, const std::string& folder_uri, const Networks& networks,
                            bool self_conditioning) {
  storage::ModelIndex index{.name = "tiny",
                            .version = "v1",
                            .dataset = "d",
                            .channels = static_cast<int32_t>(networks.router.config.channels),
                            .height = static_cast<int32_t>(networks.router.config.height),
                            .width = static_cast<int32_t>(networks.router.config.width_pixels),
                            .self_conditioning = self_conditioning,
                            .classes = {"a", "b", "c", "d"},
                            .cluster_rows = {1, 1, 1},
                            .experts = kTinyExperts};
  const auto add = [&](const std::string& name, const std::string& bytes) {
    const storage::WrittenFile written = store->Write(folder_uri + "/" + name, bytes).value();
    index.files.push_back({name, written.bytes, written.sha256});
  };
  const auto add_network = [&](const std::string& part, const model::LoadedModel& network) {
    add(fmt::format("{}/{}", part, storage::kConfigFile), model::ToJson(network.config));
    add(fmt::format("{}/{}", part, storage::kWeightsFile), *model::SerializeParameters(network.layers));
  };
  for (size_t k = 0; k < networks.experts.size(); ++k) {
    add_network(fmt::format("expert_{}", k), networks.experts[k]);
  }
  add_network("router", networks.router);
  return store->Write(folder_uri + "/model_index.json", storage::ToJson(index)).value().sha256;
}

}  // namespace atl::router
