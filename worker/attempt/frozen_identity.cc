#include "worker/attempt/frozen_identity.h"

#include <fmt/format.h>

#include "common/spec/frozen.h"
#include "common/spec/spec_io.h"
#include "common/storage/sha256.h"

namespace atl::worker {

std::string FrozenIdentity(const trainer::TrainerOptions& options) {
  spec::JobSpec only;
  only.frozen = options.frozen;
  // The bytes that were read are hashed below, whether the job says their hash or not.
  for (spec::FrozenSpec& component : only.frozen) component.file_sha256.clear();
  std::string text = spec::ToYaml(only);
  for (const std::string& uri : spec::FrozenFiles(options.frozen)) {
    const bool known = options.frozen_files != nullptr && options.frozen_files->contains(uri);
    if (known) text += storage::Sha256(options.frozen_files->at(uri));
  }
  return text;
}

std::string FrozenCacheKey(const TrainingInputs& inputs) {
  const trainer::TrainerOptions& options = inputs.options;
  std::string text = fmt::format("1 {} {} {} {} {} {} {}", options.channels, options.height, options.width,
                                 options.classes, options.training.flip, options.frozen_seed, FrozenIdentity(options));
  for (const auto& partition : inputs.partitions) {
    for (const dataset::Shard& shard : partition) text += " " + shard.sha256;
  }
  return storage::Sha256(text).substr(0, 32);
}

}  // namespace atl::worker
