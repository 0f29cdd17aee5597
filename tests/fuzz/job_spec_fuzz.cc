// Job specs as YAML.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "common/spec/spec_io.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto spec = atl::spec::ParseJobSpec(text, "fuzz");
  if (!spec.ok()) return 0;
  const atl::spec::DatasetFacts facts{.training_samples = 1000, .classes = 10, .channels = 1, .height = 8, .width = 8};
  (void)atl::spec::Validate(*spec, nullptr);
  if (!atl::spec::Validate(*spec, &facts).ok()) return 0;
  // A valid spec must survive being written with every field.
  const std::string written = atl::spec::ToYaml(*spec);
  const auto again = atl::spec::ParseJobSpec(written, "written");
  if (!again.ok() || !(*again == *spec)) {
    std::fprintf(stderr, "%s\n%s\n", again.status().ToString().c_str(), written.c_str());
    std::abort();
  }
  return 0;
}
