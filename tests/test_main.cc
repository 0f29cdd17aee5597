// The main function of every GoogleTest program here. It makes skipped cases visible:
//   - A program whose cases were all skipped ends with 77, which CTest shows as Skipped.
//   - Where CI is set a skipped case is a failure: CI has everything that tests need.
//   - What each program counted is appended to the file that ATOLL_TEST_LOG names; tests/summary.py reads it.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

constexpr int kAllSkipped = 77;

// Collects "Suite.Case<TAB>reason" of each skipped case.
class SkipListener : public testing::EmptyTestEventListener {
 public:
  void OnTestEnd(const testing::TestInfo& test) override {
    for (int i = 0; i < test.result()->total_part_count(); ++i) {
      const testing::TestPartResult& part = test.result()->GetTestPartResult(i);
      if (!part.skipped()) continue;
      std::string reason = part.message();
      for (char& c : reason) c = c == '\n' || c == '\t' ? ' ' : c;
      skips_.push_back(std::string(test.test_suite_name()) + "." + test.name() + "\t" + reason);
    }
  }
  const std::vector<std::string>& skips() const { return skips_; }

 private:
  std::vector<std::string> skips_;
};

// Appends in one write, since programs run side by side.
void AppendToLog(const std::string& program, const testing::UnitTest& tests, const std::vector<std::string>& skips) {
  const char* const path = std::getenv("ATOLL_TEST_LOG");
  if (path == nullptr) return;
  std::ostringstream lines;
  lines << "cases\t" << program << '\t' << tests.successful_test_count() << '\t' << tests.failed_test_count() << '\t'
        << tests.skipped_test_count() << '\n';
  for (const std::string& skip : skips) lines << "skipped\t" << program << '\t' << skip << '\n';
  std::ofstream(path, std::ios::app) << lines.str() << std::flush;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  testing::UnitTest* const tests = testing::UnitTest::GetInstance();
  auto* const listener = new SkipListener;  // GoogleTest deletes it
  tests->listeners().Append(listener);
  const int failed = RUN_ALL_TESTS();
  const int skipped = tests->skipped_test_count();
  AppendToLog(std::filesystem::path(argv[0]).filename(), *tests, listener->skips());
  if (failed != 0) return failed;
  if (skipped > 0 && std::getenv("CI") != nullptr) {
    std::fprintf(stderr, "%d cases were skipped: a failure, since CI is set\n", skipped);
    return 1;
  }
  return skipped > 0 && tests->successful_test_count() == 0 ? kAllSkipped : 0;
}
