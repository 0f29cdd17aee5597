#include "common/auth/authenticator.h"

#include <filesystem>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "common/base/errors.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"
#include "spdlog/spdlog.h"

namespace atl::rpc {
namespace {

// Bound on cached JWTs whose signatures were checked. Checking an elliptic curve takes about a hundred times as long as
// a lookup.
constexpr size_t kMaxChecked = 4096;
constexpr int64_t kMaxFileBytes = 4 << 20;

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
    Loaded first;
    ATOLL_ASSIGN_OR_RETURN(first.known, ReadKnown());
    ATOLL_ASSIGN_OR_RETURN(first.denied, ReadDenied());
    Take(std::move(first));
    thread_ = std::thread([this] { Run(); });
    return absl::OkStatus();
  }

  absl::StatusOr<Principal> Check(std::string_view bearer,
                                  std::span<const std::string> certificate_names) const override {
    return CheckAsOf(bearer, certificate_names, clock_->Now());
  }

  absl::StatusOr<Principal> CheckAsOf(std::string_view bearer, std::span<const std::string> certificate_names,
                                      absl::Time time) const override {
    const bool jwt = LooksLikeJwt(bearer);
    const std::string hash = jwt ? TokenHash(bearer) : "";
    std::shared_ptr<const Loaded> loaded;
    {
      absl::MutexLock lock(&mutex_);
      loaded = loaded_;
      if (const auto found = checked_.find(hash); jwt && found != checked_.end() && time < found->second.expires) {
        return found->second;
      }
    }
    absl::StatusOr<Principal> principal =
        loaded->known->principals.Check(bearer, certificate_names, loaded->denied->list, time);
    if (jwt && principal.ok()) {
      absl::MutexLock lock(&mutex_);
      if (loaded_ == loaded) {
        if (checked_.size() >= kMaxChecked) checked_.clear();
        checked_.emplace(hash, *principal);
      }
    }
    return principal;
  }

 private:
  using Files = std::map<std::string, std::string>;  // contents, by path
  // The principals in force, and the contents of the files that they were read from. Principals and deny list are
  // reloaded separately: while one cannot be read, a caller revoked by the other stays out.
  struct Known {
    Principals principals;
    Files files;
  };
  struct Denied {
    DenyList list;
    Files files;
  };
  struct Loaded {
    std::shared_ptr<const Known> known;
    std::shared_ptr<const Denied> denied;
  };

  // `what` is in the file, for errors.
  static absl::StatusOr<std::string> Read(const std::string& path, std::string_view what, Files* files) {
    absl::StatusOr<std::string> text = ReadFile(path, kMaxFileBytes);
    if (!text.ok()) return WithContext(text.status(), what);
    (*files)[path] = *text;
    return text;
  }

  absl::StatusOr<std::shared_ptr<const Known>> ReadKnown() const {
    auto fresh = std::make_shared<Known>();
    // Keys are named as seen from the file that names them.
    const std::filesystem::path folder = std::filesystem::path(options_.principals).parent_path();
    ATOLL_ASSIGN_OR_RETURN(const std::string yaml, Read(options_.principals, "--principals", &fresh->files));
    ATOLL_ASSIGN_OR_RETURN(fresh->principals,
                           Principals::Parse(yaml, options_.principals, [&](const std::string& path) {
                             return Read((folder / path).string(), "keys of the issuer", &fresh->files);
                           }));
    return fresh;
  }

  absl::StatusOr<std::shared_ptr<const Denied>> ReadDenied() const {
    auto fresh = std::make_shared<Denied>();
    if (options_.deny_list.empty()) return fresh;
    ATOLL_ASSIGN_OR_RETURN(const std::string text, Read(options_.deny_list, "--deny-list", &fresh->files));
    ATOLL_ASSIGN_OR_RETURN(fresh->list, DenyList::Parse(text, options_.deny_list));
    return fresh;
  }

  void Take(Loaded fresh) {
    absl::MutexLock lock(&mutex_);
    loaded_ = std::make_shared<const Loaded>(std::move(fresh));
    checked_.clear();
  }

  // Compares contents, because a swapped link, or a second write within a clock's tick, changes no time stamp.
  static bool Changed(const Files& files) {
    for (const auto& [path, text] : files) {
      const absl::StatusOr<std::string> now = ReadFile(path, kMaxFileBytes);
      if (!now.ok() || *now != text) return true;
    }
    return false;
  }

  // Reloads `part` if its files changed; returns whether it is replaced. `complaint` holds the logged error of
  // unreadable files.
  template <typename Part, typename ReadPart>
  static bool Renew(std::string_view name, const ReadPart& read, std::shared_ptr<const Part>* part,
                    std::string* complaint) {
    if (!Changed((*part)->files)) {
      complaint->clear();
      return false;
    }
    absl::StatusOr<std::shared_ptr<const Part>> fresh = read();
    if (!fresh.ok() && *complaint != fresh.status().message()) {
      spdlog::error("the {} as it was stays in force: {}", name, std::string(fresh.status().message()));
    }
    *complaint = std::string(fresh.status().message());
    if (!fresh.ok()) return false;
    spdlog::info("the {} is read again", name);
    *part = *std::move(fresh);
    return true;
  }

  void Run() {
    std::string of_known;
    std::string of_denied;
    bool tell_again = false;
    absl::MutexLock lock(&mutex_);
    while (!clock_->AwaitUntil(&mutex_, absl::Condition(&stopping_), clock_->Monotonic() + kReloadInterval)) {
      Loaded fresh = *loaded_;
      mutex_.Unlock();
      const bool known = Renew(
          "principals file", [this] { return ReadKnown(); }, &fresh.known, &of_known);
      const bool denied = Renew(
          "deny list", [this] { return ReadDenied(); }, &fresh.denied, &of_denied);
      const bool changed = known || denied;
      if (changed) Take(std::move(fresh));
      // Calls it once more at the next check: a call accepted under the old files may have become a stream after the
      // first.
      if ((std::exchange(tell_again, changed) || changed) && options_.reloaded) options_.reloaded(*this);
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
