"""Small trees that break one rule each."""
import os
import tempfile
import unittest

import source_rules

LOW = ("common/low/CMakeLists.txt", "atoll_library(LAYER 1\n  HEADERS low.h  # pure\n  SOURCES low.cc)\n")
HIGH = ("worker/high/CMakeLists.txt", "atoll_library(LAYER 4 HEADERS high.h SOURCES high.cc DEPS atoll::common_low)\n")


class SourceRulesTest(unittest.TestCase):
    def offences(self, *files):
        with tempfile.TemporaryDirectory() as root:
            for path, text in (LOW, HIGH) + files:
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            return list(source_rules.check(root))

    def test_downward_include_is_fine(self):
        self.assertEqual(self.offences(("worker/high/high.cc", '#include "common/low/low.h"\n')), [])

    def test_upward_include_is_named_with_both_layers(self):
        (offence,) = self.offences(("common/low/low.cc", '\n#include "worker/high/high.h"\n'))
        self.assertIn("common/low/low.cc:2: common/low (layer 1)", offence)
        self.assertIn("(layer 4)", offence)

    def test_tests_may_include_upward(self):
        self.assertEqual(self.offences(("common/low/low_test.cc", '#include "worker/high/high.h"\n')), [])

    def test_torch_stays_in_its_folders(self):
        self.assertEqual(len(self.offences(("common/low/low.cc", "#include <ATen/ops/add.h>\n"))), 1)
        self.assertEqual(self.offences(("common/model/layer.cc", "#include <ATen/ops/add.h>\n")), [])

    def test_generated_messages_stay_at_the_edges(self):
        self.assertEqual(len(self.offences(("common/low/low.cc", '#include "atoll/job/v1/job.pb.h"\n'))), 1)
        self.assertEqual(self.offences(("common/wire/job.cc", '#include "atoll/job/v1/job.pb.h"\n')), [])

    def test_headers_have_a_guard_and_names_a_meaning(self):
        self.assertEqual(len(self.offences(("common/low/low.h", "int x;\n"))), 1)
        self.assertEqual(len(self.offences(("common/low/low.cc", "class LeaseManager {\n"))), 1)
        self.assertEqual(len(self.offences(("common/low/string_utils.cc", "\n"))), 1)

    def test_relative_include_is_refused(self):
        self.assertEqual(len(self.offences(("common/low/low.cc", '#include "../low.h"\n'))), 1)


if __name__ == "__main__":
    unittest.main()
