"""Checks that a skipped case cannot pass unseen: skip_probe through CTest as every test runs, and tests/summary.py after it.

    skips_test.py PROBE SUMMARY
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROBE, SUMMARY = [os.path.abspath(path) for path in sys.argv[1:3]]


def run(filter_, ci, probe=PROBE):
    """(what CTest said, what the summary said, the summary's exit code) of the cases that `filter_` picks."""
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "ATOLL_TEST_LOG")}
    if ci:
        environment["CI"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "CTestTestfile.cmake").write_text(
            f'add_test(skip_probe "{probe}" "--gtest_filter={filter_}")\n'
            "set_tests_properties(skip_probe PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 20)\n"
        )
        environment["ATOLL_TEST_LOG"] = folder + "/log"
        said = subprocess.run(["ctest", "--test-dir", folder, "--output-junit", folder + "/junit.xml"], env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout
        summary = subprocess.run([sys.executable, SUMMARY, folder + "/junit.xml", folder + "/log"], env=environment,
                                 stdout=subprocess.PIPE, text=True, check=False)
    slowest, *lines = summary.stdout.splitlines()
    assert slowest.startswith("slowest: skip_probe"), slowest
    return said, lines, summary.returncode


class Skips(unittest.TestCase):
    def test_a_program_that_skipped_everything_is_skipped(self):
        said, summary, code = run("Probe.Skips", ci=False)
        self.assertIn("***Skipped", said)
        self.assertEqual(summary, ["skipped: skip_probe: Probe.Skips: needs the moon", "0 passed, 0 failed, 1 skipped"])
        self.assertEqual(code, 0)

    def test_a_program_that_skipped_one_case_passes_and_the_case_is_named(self):
        said, summary, code = run("*", ci=False)
        self.assertIn("Passed", said)
        self.assertEqual(summary, ["skipped: skip_probe: Probe.Skips: needs the moon", "1 passed, 0 failed, 1 skipped"])
        self.assertEqual(code, 0)

    def test_ci_fails_on_a_skipped_case(self):
        for filter_ in ("*", "Probe.Skips"):
            said, summary, code = run(filter_, ci=True)
            self.assertIn("***Failed", said)
            self.assertIn("1 failed, 1 skipped", summary[-1])
            self.assertEqual(code, 1)

    def test_without_skips_nothing_is_said(self):
        said, summary, code = run("Probe.Passes", ci=True)
        self.assertIn("Passed", said)
        self.assertEqual((summary, code), (["1 passed, 0 failed, 0 skipped"], 0))

    def test_a_program_that_is_not_there_has_failed(self):
        said, summary, code = run("*", ci=False, probe=PROBE + ".missing")
        self.assertIn("***Not Run", said)
        self.assertEqual((summary, code), (["0 passed, 1 failed, 0 skipped"], 1))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
