#include "common/model/torchscript.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_replace.h"
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
      {"o = ops\no.rpc.remote(x)", "ops"},
      {"(ops).rpc.remote(x)", "ops"},
      {"(ops. # c\n rpc.remote(x))", "ops"},
      {"x = ops", "ops"},
      {"  ops : __torch__.torch.nn.modules.container.ModuleList\n", ""},
      {"self.ops.add(x)", ""},
      {"c = __torch__.torch\nc.classes.c10d.ProcessGroup", "__torch__.torch"},
      {"c = __torch__.torch.classes\nc.c10d.ProcessGroup", "__torch__.torch.classes"},
      {"t = torch\nt.add(x, self.classes)", ""},
      {"_0 = getattr(self, \"0\")", ""},
      {"_1 = (getattr(getattr(self.layers, \"0\"), \"1\")).forward(x, )", ""},
      {"getattr(torch, \"from_file\")(x)", "getattr"},
      {"getattr(torch, \"from_\" \"file\")(x)", "getattr"},
      {"getattr(torch, \"from\\137file\")(x)", "getattr"},
      {"getattr(torch, # \"0\")\n \"from_\" \"file\")", "getattr"},
      {"getattr(__torch__, \"torch\").classes.c10d.ProcessGroup", "getattr"},
      {"g = getattr", "getattr"},
      {"# from_file", "from_file"},
  };
  for (const Case& c : cases) EXPECT_EQ(RefusedOperator(c.code).value_or(""), c.refused) << c.code;
}

std::string Archive(const std::string& methods, const std::string& class_name = "layer") {
  torch::jit::Module module(class_name);
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

TEST(TorchScriptTest, AnArchiveIsRefusedWhoseCodeIsNotWhereItIsLookedFor) {
  const std::string evil = "def forward(self, x):\n  torch.save(x, \"made\")\n  return x\n";
  // LibTorch takes either for code/__torch__.py.
  std::string capitals = Archive(evil);
  ASSERT_NE(capitals.find("/__torch__.py"), std::string::npos);
  absl::StrReplaceAll({{"/__torch__.py", "/__torch__.PY"}}, &capitals);
  const absl::Status by_capitals = LoadTorchScript(capitals, "cpu", "f", "u").status();
  EXPECT_EQ(ErrorReason(by_capitals), "TORCHSCRIPT_REFUSED") << by_capitals;
  EXPECT_THAT(std::string(by_capitals.message()), HasSubstr("torch.save in code/__torch__.PY"));

  // Its name is listed cut short, without its end.
  const absl::Status by_length =
      LoadTorchScript(Archive(evil, "__torch__." + std::string(600, 'a') + ".layer"), "cpu", "f", "u").status();
  EXPECT_EQ(ErrorReason(by_length), "TORCHSCRIPT_REFUSED") << by_length;

  // An archive that is a mobile module too.
  std::string mobile = Archive("def forward(self, x):\n  return x\n");
  mobile.replace(4, 4, "PTMF");
  const absl::Status by_format = LoadTorchScript(mobile, "cpu", "f", "u").status();
  EXPECT_EQ(ErrorReason(by_format), "TORCHSCRIPT_FILE") << by_format;
  EXPECT_THAT(std::string(by_format.message()), HasSubstr("bytes that are no archive"));
}

TEST(TorchScriptTest, WhatWorksOnTensorsLoads) {
  auto module =
      LoadTorchScript(Archive("def forward(self, x):\n  return x.flatten(1).softmax(1) * 3\n"), "cpu", "f", "u");
  ASSERT_TRUE(module.ok()) << module.status();
  EXPECT_FLOAT_EQ(module->forward({at::zeros({1, 3})}).toTensor().sum().item<float>(), 3);
}

}  // namespace
}  // namespace atl::model
