#include "common/model/torchscript.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"

namespace atl::model {
namespace {

using ::testing::HasSubstr;

TEST(TorchScriptTest, OperatorsThatReachBeyondTensorsAreRefused) {
  struct Case {
    std::string code;
    std::string refused;  // none when empty
  };
  const Case cases[] = {
      {"def forward(self, x: Tensor) -> Tensor:\n  return torch.mul(x, 3)\n", ""},
      {"_0 = torch.from_file(\"/etc/passwd\", True, 16)", "torch.from_file"},
      {"_0 = torch . \\\n from_file (\"/etc/passwd\")", "torch.from_file"},
      {"_0 = ops.aten.from_file(\"/etc/passwd\")", "ops.aten.from_file"},
      {"torch.save(x, \"/root/.ssh/authorized_keys\")", "torch.save"},
      {"ops.aten.save(x, \"f\")", "ops.aten.save"},
      {"_1 = ops.prim.NumToTensor(torch.size(x, 0))", ""},
      {"_1 = ops.quantized.linear(x, self.packed, 0.1, 0)", ""},
      {"_1 = ops.rpc.remote(x)", "ops.rpc"},
      {"_1 = torch.ops.c10d.allreduce_(x)", "torch.ops.c10d"},
      {"_1 = ops\n.mylib\n.run(x)", "ops.mylib"},
      {"packed : __torch__.torch.classes.quantized.LinearPackedParamsBase", ""},
      {"group : __torch__.torch.classes.c10d.ProcessGroup", "__torch__.torch.classes.c10d"},
      {"net = __torch__.torch.classes.nnapi.Compilation()", "__torch__.torch.classes.nnapi"},
      {"self.saved_ops.mean(x) + drops.run", ""},
      {"# from_file", "from_file"},
  };
  for (const Case& c : cases) EXPECT_EQ(RefusedOperator(c.code).value_or(""), c.refused) << c.code;
}

std::string Archive(const std::string& methods) {
  torch::jit::Module module("layer");
  module.define(methods);
  std::ostringstream out;
  module.save(out);
  return out.str();
}

TEST(TorchScriptTest, AnArchiveThatWouldMakeAFileIsRefusedBeforeItRuns) {
  const std::string path = testing::TempDir() + "torchscript_test_made";
  std::filesystem::remove(path);
  const std::string writes = fmt::format(R"(
def forward(self, x):
  y = torch.from_file("{}", True, 16)
  return x + y.fill_(1.0).sum()
)",
                                         path);
  const auto refused = LoadTorchScript(Archive(writes), "cpu", "frozen[0]", "s3://b/evil.pt");
  EXPECT_EQ(ErrorReason(refused.status()), "TORCHSCRIPT_REFUSED") << refused.status();
  EXPECT_EQ(ErrorField(refused.status()), "frozen[0]");
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("s3://b/evil.pt: expected operators on tensors alone"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("torch.from_file"));
  EXPECT_FALSE(std::filesystem::exists(path));

  const std::string saves = "def forward(self, x):\n  torch.save(x, \"" + path + "\")\n  return x\n";
  EXPECT_EQ(ErrorReason(LoadTorchScript(Archive(saves), "cpu", "f", "u").status()), "TORCHSCRIPT_REFUSED");
}

TEST(TorchScriptTest, WhatWorksOnTensorsLoads) {
  auto module =
      LoadTorchScript(Archive("def forward(self, x):\n  return x.flatten(1).softmax(1) * 3\n"), "cpu", "f", "u");
  ASSERT_TRUE(module.ok()) << module.status();
  EXPECT_FLOAT_EQ(module->forward({at::zeros({1, 3})}).toTensor().sum().item<float>(), 3);
}

}  // namespace
}  // namespace atl::model
