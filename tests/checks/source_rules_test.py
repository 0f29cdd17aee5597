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

    def test_an_include_needs_its_library_among_the_deps(self):
        side = ("worker/side/CMakeLists.txt", "atoll_library(LAYER 4 HEADERS side.h SOURCES side.cc)\n")
        (offence,) = self.offences(side, ("worker/side/side.cc", '#include "worker/high/high.h"\n'))
        self.assertIn("its DEPS lack atoll::worker_high", offence)
        self.assertEqual(self.offences(side, ("worker/side/side_test.cc", '#include "worker/high/high.h"\n')), [])

    def test_libraries_form_no_circle(self):
        (offence,) = self.offences(
            ("worker/a/CMakeLists.txt", "atoll_library(LAYER 4 SOURCES a.cc DEPS atoll::worker_b)\n"),
            ("worker/b/CMakeLists.txt", "atoll_library(LAYER 4 SOURCES b.cc DEPS atoll::worker_a)\n"))
        self.assertIn("worker/a -> worker/b -> worker/a", offence)

    def test_programs_do_not_include_each_other(self):
        high = '#include "worker/high/high.h"\n'
        self.assertEqual(len(self.offences(("router/main.cc", high))), 1)
        self.assertEqual(self.offences(("router/main_test.cc", high)), [])
        self.assertEqual(self.offences(("worker/process/main.cc", '#include "expert_server/expert_server.h"\n')), [])

    def test_no_folder_is_too_large(self):
        files = [(f"worker/high/{i}.cc", "\n") for i in range(45)]
        tests = [(f"worker/high/{i}_test.cc", "\n") for i in range(45)]
        self.assertEqual(self.offences(*files, *tests), [])
        self.assertEqual(len(self.offences(*files, ("worker/high/more.cc", "\n"))), 1)


if __name__ == "__main__":
    unittest.main()
