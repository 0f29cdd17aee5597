// SHA-256 over bytes that arrive in pieces, and of whole files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace atl::storage {

// Not thread-safe.
class Sha256Hasher {
 public:
  Sha256Hasher();
  ~Sha256Hasher();
  Sha256Hasher(Sha256Hasher&&) noexcept;
  Sha256Hasher& operator=(Sha256Hasher&&) noexcept;

  void Update(std::string_view bytes);
  // Returns lower-case hex. Call once, last.
  std::string FinishHex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns lower-case hex.
std::string Sha256(std::string_view bytes);
// Returns the first 64 bits, big endian: the number that starts the hex form.
uint64_t Sha256Prefix64(std::string_view bytes);

}  // namespace atl::storage
