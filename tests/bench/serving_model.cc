#include "tests/bench/serving_model.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "common/base/status_macros.h"
#include "common/formats/model_index.h"
#include "common/model/dit.h"
#include "common/model/weights_testing.h"

namespace atl::bench {
namespace {

// Fresh networks answer zero (adaLN-Zero): what is added makes the class and the time matter.
model::LoadedModel RandomNetwork(model::DitConfig config, uint64_t seed, double scale) {
  model::LoadedModel network{.config = std::move(config)};
  network.layers = model::BuildLayers(network.config, seed, 0, model::LayerCount(network.config));
  const at::NoGradGuard no_grad;
  at::Generator generator = at::detail::createCPUGenerator(seed);
  for (const auto& layer : network.layers) {
    for (const model::NamedTensor& parameter : layer->parameters()) {
      parameter.tensor.add_(at::randn(parameter.tensor.sizes(), generator, at::kFloat), scale);
    }
  }
  return network;
}

}  // namespace

std::vector<model::LoadedModel> BuildNetworks(const ServingModel& model) {
  const model::DitConfig expert{.channels = model.channels,
                                .height = model.side,
                                .width_pixels = model.side,
                                .classes = model.classes,
                                .patch = 2,
                                .width = model.width,
                                .depth = model.depth,
                                .heads = model.heads};
  std::vector<model::LoadedModel> networks;
  for (int k = 0; k < model.experts; ++k) {
    networks.push_back(RandomNetwork(expert, static_cast<uint64_t>(k) + 1, 0.02));
  }
  model::DitConfig router = expert;
  router.width = model.router_width;
  router.depth = model.router_depth;
  router.outputs = model.experts;
  networks.push_back(RandomNetwork(router, 99, 0.2));
  return networks;
}

absl::StatusOr<std::string> Publish(const ServingModel& model, const std::vector<model::LoadedModel>& networks,
                                    storage::BlobStore* store, const std::string& folder_uri,
                                    const std::string& probe) {
  storage::ModelIndex index{.name = model.name,
                            .version = "v1",
                            .dataset = "none",
                            .channels = model.channels,
                            .height = model.side,
                            .width = model.side,
                            .latent = true,
                            .cluster_rows = std::vector<int64_t>(static_cast<size_t>(model.experts), 1),
                            .experts = model.experts};
  for (int label = 0; label < model.classes; ++label) index.classes.push_back(fmt::format("{}", label));
  const auto add = [&](const std::string& name, const std::string& bytes) -> absl::Status {
    ATOLL_ASSIGN_OR_RETURN(const storage::WrittenFile written, store->Write(folder_uri + "/" + name, bytes));
    index.files.push_back({name, written.bytes, written.sha256});
    return absl::OkStatus();
  };
  for (size_t k = 0; k < networks.size(); ++k) {
    const std::string part = k + 1 == networks.size() ? "router" : fmt::format("expert_{}", k);
    ATOLL_ASSIGN_OR_RETURN(const std::string weights, model::SerializeParameters(networks[k].layers));
    ATOLL_RETURN_IF_ERROR(add(part + "/" + storage::kConfigFile, model::ToJson(networks[k].config)));
    ATOLL_RETURN_IF_ERROR(add(part + "/" + storage::kWeightsFile, weights));
  }
  if (!probe.empty()) {
    index.probe = "probe.safetensors";
    ATOLL_RETURN_IF_ERROR(add(index.probe, probe));
  }
  ATOLL_ASSIGN_OR_RETURN(const storage::WrittenFile written,
                         store->Write(folder_uri + "/model_index.json", storage::ToJson(index)));
  return written.sha256;
}

}  // namespace atl::bench
