// Every script of tests/scenario/coordinator is one test.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "gtest/gtest.h"
#include "tests/scenario/coordinator_script.h"

namespace atl::coordinator {
namespace {

std::vector<std::string> Scripts() {
  const char* source = std::getenv("ATOLL_SOURCE_DIR");
  const std::filesystem::path folder =
      std::filesystem::path(source == nullptr ? "." : source) / "tests" / "scenario" / "coordinator";
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".txt") paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

class CoordinatorScenarioTest : public testing::TestWithParam<std::string> {};

TEST_P(CoordinatorScenarioTest, GoesAsWritten) {
  std::ifstream file(GetParam());
  std::stringstream text;
  text << file.rdbuf();
  ASSERT_FALSE(text.str().empty());
  std::string folder = testing::TempDir() + "atoll_scenario_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  {
    CoordinatorScript script(folder);
    EXPECT_EQ(script.Run(text.str()), "");
  }
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Scripts, CoordinatorScenarioTest, testing::ValuesIn(Scripts()),
                         [](const auto& info) { return std::filesystem::path(info.param).stem().string(); });

TEST(CoordinatorScenarioCountTest, ScriptsAreFound) {
  EXPECT_GE(Scripts().size(), 8u) << "run from the repository root, or set ATOLL_SOURCE_DIR";
}

}  // namespace
}  // namespace atl::coordinator
