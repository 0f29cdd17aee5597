// Owners of pointers that C libraries hand out, and of file descriptors.
#pragma once

#include <unistd.h>

#include <memory>
#include <utility>

namespace atl {

template <auto Free>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};

// A pointer that the library's own function frees: Handle<BIO, BIO_free_all>.
template <typename T, auto Free>
using Handle = std::unique_ptr<T, Freer<Free>>;

// Owns a file descriptor and closes it when destroyed; -1: none. Move assignment swaps, so that the other object closes
// the old one.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { Close(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

}  // namespace atl
