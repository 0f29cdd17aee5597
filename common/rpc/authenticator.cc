#include "common/rpc/authenticator.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace atl::rpc {
namespace {

// Of JWTs whose signatures were checked: an elliptic curve takes about a hundred times as long as a look here.
constexpr size_t kMaxChecked = 4096;
constexpr size_t kMaxFileBytes = 4 << 20;

absl::StatusOr<std::string> Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  std::array<char, 4096> piece;
  while (text.size() <= kMaxFileBytes && (file.read(piece.data(), piece.size()) || file.gcount() > 0)) {
    text.append(piece.data(), static_cast<size_t>(file.gcount()));
  }
  if (text.size() > kMaxFileBytes) {
    return MakeError(absl::StatusCode::kInvalidArgument, "FILE_ERROR",
                     fmt::format("{}: expected at most 4 MiB, found more", path));
  }
  // Where reading fails before the end, what came is no file: a deny list would be one of fewer entries, or of none.
  if (file.eof()) return text;
  return MakeError(absl::StatusCode::kNotFound, "FILE_ERROR", fmt::format("cannot read {}", path));
}

class FileAuthenticator final : public Authenticator {
 public:
  FileAuthenticator(AuthenticatorOptions options, Clock* clock) : options_(std::move(options)), clock_(clock) {}

  ~FileAuthenticator() override {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Start() {
    ATOLL_RETURN_IF_ERROR(Load());
    thread_ = std::thread([this] { Run(); });
    return absl::OkStatus();
  }

  absl::StatusOr<Principal> Check(std::string_view bearer,
                                  std::span<const std::string> certificate_names) const override {
    const absl::Time now = clock_->Now();
    const bool jwt = LooksLikeJwt(bearer);
    const std::string hash = jwt ? TokenHash(bearer) : "";
    std::shared_ptr<const Loaded> loaded;
    {
      absl::MutexLock lock(&mutex_);
      loaded = loaded_;
      if (const auto found = checked_.find(hash); jwt && found != checked_.end() && now < found->second.expires) {
        return found->second;
      }
    }
    absl::StatusOr<Principal> principal = loaded->principals.Check(bearer, certificate_names, loaded->denied, now);
    if (jwt && principal.ok()) {
      absl::MutexLock lock(&mutex_);
      if (loaded_ == loaded) {
        if (checked_.size() >= kMaxChecked) checked_.clear();
        checked_.emplace(hash, *principal);
      }
    }
    return principal;
  }

  absl::StatusOr<Principal> CheckAsOf(std::string_view bearer, std::span<const std::string> certificate_names,
                                      absl::Time time) const override {
    std::shared_ptr<const Loaded> loaded;
    {
      absl::MutexLock lock(&mutex_);
      loaded = loaded_;
    }
    return loaded->principals.Check(bearer, certificate_names, loaded->denied, time);
  }

 private:
  // What is in force, and the files that it was read from.
  struct Loaded {
    Principals principals;
    DenyList denied;
    std::map<std::string, std::string> files;
  };

  absl::StatusOr<std::shared_ptr<const Loaded>> ReadAll() const {
    auto fresh = std::make_shared<Loaded>();
    const auto read = [&fresh](const std::string& path) -> absl::StatusOr<std::string> {
      ATOLL_ASSIGN_OR_RETURN(std::string text, Contents(path));
      fresh->files[path] = text;
      return text;
    };
    // Keys are named as seen from the file that names them.
    const std::filesystem::path folder = std::filesystem::path(options_.principals).parent_path();
    ATOLL_ASSIGN_OR_RETURN(const std::string yaml, read(options_.principals));
    ATOLL_ASSIGN_OR_RETURN(fresh->principals,
                           Principals::Parse(yaml, options_.principals,
                                             [&](const std::string& path) { return read((folder / path).string()); }));
    if (!options_.deny_list.empty()) {
      ATOLL_ASSIGN_OR_RETURN(const std::string text, read(options_.deny_list));
      ATOLL_ASSIGN_OR_RETURN(fresh->denied, DenyList::Parse(text, options_.deny_list));
    }
    return fresh;
  }

  absl::Status Load() {
    ATOLL_ASSIGN_OR_RETURN(std::shared_ptr<const Loaded> fresh, ReadAll());
    absl::MutexLock lock(&mutex_);
    loaded_ = std::move(fresh);
    checked_.clear();
    return absl::OkStatus();
  }

  // By contents: a link that is swapped, or a second write within a clock's tick, shows in no time stamp.
  bool Changed(const Loaded& loaded) const {
    for (const auto& [path, text] : loaded.files) {
      const absl::StatusOr<std::string> now = Contents(path);
      if (!now.ok() || *now != text) return true;
    }
    return false;
  }

  void Run() {
    std::string complaint;
    absl::MutexLock lock(&mutex_);
    while (!clock_->AwaitUntil(&mutex_, absl::Condition(&stopping_), clock_->Monotonic() + options_.reload)) {
      const std::shared_ptr<const Loaded> loaded = loaded_;
      mutex_.Unlock();
      if (Changed(*loaded)) {
        const absl::Status status = Load();
        if (status.ok()) {
          spdlog::info("principals are read again from {}", options_.principals);
          if (options_.reloaded) options_.reloaded(*this);
        }
        if (!status.ok() && complaint != status.message()) {
          spdlog::error("principals stay as they were: {}", std::string(status.message()));
        }
        complaint = std::string(status.message());
      } else {
        complaint.clear();
      }
      mutex_.Lock();
    }
  }

  const AuthenticatorOptions options_;
  Clock* const clock_;
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const Loaded> loaded_ ABSL_GUARDED_BY(mutex_);
  mutable absl::flat_hash_map<std::string, Principal> checked_ ABSL_GUARDED_BY(mutex_);  // by the token's hash
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Authenticator>> Authenticator::Open(const AuthenticatorOptions& options,
                                                                         Clock* clock) {
  auto authenticator = std::make_shared<FileAuthenticator>(options, clock);
  ATOLL_RETURN_IF_ERROR(authenticator->Start());
  return authenticator;
}

}  // namespace atl::rpc
