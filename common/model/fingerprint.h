// Identifies the arithmetic: equal fingerprints give equal bits for equal batches. No LibTorch header is needed.
#pragma once

#include <cstdint>
#include <string>

#include "common/model/device.h"

namespace atl::model {

// Returns "atoll-0.1.0+1f2e3d4c/torch-2.11.0/AVX512/Some Processor/t1/r2": this build's version and the hash of its
// layers' sources, LibTorch, the instruction set (also for a CUDA device, because tensors start on the host), the
// hardware, threads per batch, and the base size of reproducible batches. The same in every program of one build: it
// does not hash the program.
std::string NumericsFingerprint(const DeviceInfo& device, int threads, int64_t reproducible_rows);

}  // namespace atl::model
