// Runs a fuzz target without libFuzzer: on every file of the folders given, and on random changes of them for a few
// seconds. The changes depend on the files only, so that a failure comes back in the next run.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr int kChangesPerFile = 400;
constexpr std::chrono::seconds kLongest(5);

void Run(const std::string& bytes) {
  // A copy of exactly this size, so that a sanitizer sees a read beyond the end.
  const std::vector<uint8_t> data(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(data.data(), data.size());
}

std::string Changed(const std::string& original, const std::string& other, std::mt19937_64* random) {
  const auto below = [random](size_t n) { return n == 0 ? size_t{0} : static_cast<size_t>((*random)() % n); };
  std::string bytes = original;
  const size_t changes = 1 + below(4);
  for (size_t i = 0; i < changes; ++i) {
    const size_t at = below(bytes.size() + 1);
    switch (below(6)) {
      case 0:  // one byte
        if (at < bytes.size()) bytes[at] = static_cast<char>((*random)());
        break;
      case 1:  // one bit
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.erase(at, 1 + below(16));
        break;
      case 4:  // a number at its limits
        bytes.replace(at, std::min<size_t>(4, bytes.size() - at), 4, below(2) == 0 ? '\xff' : '\0');
        break;
      default: {  // a piece of another file
        const size_t from = below(other.size() + 1);
        bytes.insert(at, other.substr(from, below(64)));
      }
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> paths;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (entry.is_regular_file()) paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  if (paths.empty()) {
    std::fprintf(stderr, "expected folders that hold a corpus, found no file in %d of them\n", argc - 1);
    return 1;
  }
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::ifstream file(path, std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    std::fprintf(stderr, "%s (%zu bytes)\n", path.c_str(), files.back().size());
    Run(files.back());
  }
  constexpr uint64_t kSeed = 1;
  std::mt19937_64 random(kSeed);
  const auto end = std::chrono::steady_clock::now() + kLongest;
  int changes = 0;
  for (int round = 0; round < kChangesPerFile && std::chrono::steady_clock::now() < end; ++round) {
    for (const std::string& file : files) {
      Run(Changed(file, files[random() % files.size()], &random));
      ++changes;
    }
  }
  std::fprintf(stderr, "%zu files and %d changes of them (seed %llu)\n", files.size(), changes,
               static_cast<unsigned long long>(kSeed));
  return 0;
}
