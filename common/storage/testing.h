// For tests: a store in a temporary folder that is deleted with the fixture.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "common/storage/blob_store.h"
#include "gtest/gtest.h"

namespace atl::storage {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    path_ = std::filesystem::temp_directory_path() / "atoll-test-XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A store below a temporary folder.
class TemporaryStore {
 public:
  TemporaryStore() : store_(BlobStore::Open("file://" + folder_.path() + "/store").value()) {}

  BlobStore* get() { return store_.get(); }
  BlobStore* operator->() { return store_.get(); }
  const std::string& folder() const { return folder_.path(); }
  // Returns the local path behind a URI of this store.
  std::string PathOf(const std::string& uri) const { return uri.substr(std::string("file://").size()); }

 private:
  TemporaryFolder folder_;
  std::unique_ptr<BlobStore> store_;
};

}  // namespace atl::storage
