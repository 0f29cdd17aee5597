"""The scripts of a bundle: run paths are replaced, and a machine's PyTorch is found or refused in one line."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

BUNDLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "bundle")
OLD = "/a/run/path/that/is/long/enough"


def run(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


class RelocateTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.program = os.path.join(self.folder.name, "program")

    def link(self, *flags):
        source = os.path.join(self.folder.name, "program.c")
        with open(source, "w", encoding="utf-8") as file:
            file.write("int main(void) { return 7; }\n")
        built = run("cc", "-o", self.program, source, *flags)
        self.assertEqual(built.returncode, 0, built.stderr)

    def relocate(self):
        with open(os.path.join(BUNDLE, "..", "bundle.sh"), encoding="utf-8") as file:
            command = re.search(r"^ *(patchelf .*) \"", file.read(), re.MULTILINE).group(1)
        return run("sh", "-c", f"{command} {self.program}")

    def test_the_new_path_holds_for_the_libraries_libraries_too_and_the_program_runs(self):
        for flags in ((f"-Wl,-rpath,{OLD},--enable-new-dtags",), (f"-Wl,-rpath,{OLD},--disable-new-dtags",), ()):
            self.link(*flags)
            self.assertEqual(self.relocate().returncode, 0)
            dynamic = run("readelf", "-d", self.program).stdout
            self.assertIn("(RPATH)", dynamic)
            self.assertNotIn("(RUNPATH)", dynamic)
            self.assertIn("[$ORIGIN/../lib]", dynamic)
            with open(self.program, "rb") as file:
                self.assertNotIn(b"long/enough", file.read(), "nothing of the old path is left")
            self.assertEqual(run(self.program).returncode, 7)


class WithTorch(unittest.TestCase):
    """Has a folder of Python packages, and writes a PyTorch into it."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.site = self.folder.name

    def write(self, path, data):
        path = os.path.join(self.site, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
        return path

    def torch(self, version="2.11.0+cu130", cuda="'13.0'", library=b"NSt7__cxx1112basic_string"):
        self.write("torch/__init__.py", b"raise RuntimeError('nobody imports it')\n")
        text = f"from typing import Optional\n__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = {cuda}\n"
        self.write("torch/version.py", text.encode())
        self.write("torch/lib/libc10.so", library)


class FindTorchTest(WithTorch):
    def find(self, torch="2.11", cuda="13", glibc="2.17", glibcxx="3.4"):
        # -S: a PyTorch of this machine is not seen.
        return run(sys.executable, "-BS", os.path.join(BUNDLE, "find_torch.py"), torch, cuda, glibc, glibcxx, "/fallback",
                   env={**os.environ, "PYTHONPATH": self.site})

    def refused(self, message, **wanted):
        found = self.find(**wanted)
        self.assertEqual(found.returncode, 1, found.stdout)
        self.assertEqual(found.stderr.count("\n"), 1, "one line")
        self.assertIn("atoll-env: error: ", found.stderr)
        self.assertIn(message, found.stderr)

    def test_folders_of_torch_and_of_the_wheels_beside_it(self):
        self.torch()
        self.write("nvidia/cu13/lib/libcudart.so.13", b"")
        self.write("nvidia/nccl/lib/libnccl.so.2", b"")
        found = self.find()
        self.assertEqual(found.returncode, 0, found.stderr)
        folders = [os.path.relpath(folder, self.site) for folder in found.stdout.strip().split(":")]
        self.assertEqual(folders, ["torch/lib", "nvidia/cu13/lib", "nvidia/nccl/lib"])

    def test_an_old_standard_library_is_replaced(self):
        self.torch()
        self.assertTrue(self.find(glibcxx="3.4.999").stdout.strip().endswith(":/fallback"))

    def test_what_does_not_fit_is_said_in_one_line(self):
        self.refused("expected PyTorch 2.11")
        self.torch(version="2.9.1+cu130")
        self.refused("expected version 2.11 for CUDA 13, found 2.9.1+cu130 for CUDA 13.0")
        self.torch(version="2.110.0")
        self.refused("found 2.110.0")
        self.torch(version="2.11.0+cpu", cuda="None")
        self.refused("found 2.11.0+cpu for CUDA none")
        self.torch(version="2.11.0+cu126", cuda="'12.6'")
        self.refused("found 2.11.0+cu126 for CUDA 12.6")
        self.torch(library=b"Ss")
        self.refused("expected the C++11 ABI")
        self.torch()
        self.refused("expected glibc 9.9 or newer", glibc="9.9")


class EnvironmentTest(WithTorch):
    """atoll-env in a bundle whose programs only say which libraries they were given."""

    def setUp(self):
        super().setUp()
        with open(os.path.join(BUNDLE, "atoll-env"), encoding="utf-8") as file:
            script = file.read()
        for name, value in {"TORCH": "2.11", "CUDA": "13", "GLIBC": "2.17", "GLIBCXX": "3.4"}.items():
            script = script.replace(f"@{name}@", value)
        self.script("bin/atoll-env", script)
        with open(os.path.join(BUNDLE, "find_torch.py"), "rb") as file:
            self.write("libexec/find_torch.py", file.read())
        for program in ("atoll", "atoll-coordinator", "atoll-worker", "atoll-router"):
            self.script(f"libexec/{program}", '#!/bin/sh\necho "${LD_LIBRARY_PATH-none}"\n')
            os.symlink("atoll-env", os.path.join(self.site, "bin", program))

    def script(self, path, text):
        os.chmod(self.write(path, text.encode()), 0o755)

    def start(self, program, *arguments):
        environment = {**os.environ, "PYTHONPATH": self.site, "ATOLL_PYTHON": sys.executable}
        environment.pop("LD_LIBRARY_PATH", None)
        return run(os.path.join(self.site, "bin", program), *arguments, env=environment)

    def test_what_starts_workers_gets_libtorch_and_nothing_else_asks_for_it(self):
        self.torch()
        lib = os.path.join(self.site, "torch", "lib")
        for command in (("atoll", "up", "--detach"), ("atoll", "profile", "job.yaml"),
                        ("atoll", "--output", "json", "profile", "job.yaml"), ("atoll-worker",), ("atoll-router",)):
            started = self.start(*command)
            self.assertEqual((started.returncode, started.stdout), (0, lib + "\n"), (command, started.stderr))
        for command in (("atoll", "jobs", "list"), ("atoll", "plan", "job.yaml", "--profile", "p.json"),
                        ("atoll-coordinator",)):
            started = self.start(*command)
            self.assertEqual((started.returncode, started.stdout), (0, "none\n"), (command, started.stderr))

    def test_without_the_right_pytorch_only_they_are_refused(self):
        self.torch(version="2.9.1+cu130")
        self.assertEqual(self.start("atoll", "jobs", "list").returncode, 0)
        refused = self.start("atoll", "profile", "job.yaml")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("expected version 2.11 for CUDA 13, found 2.9.1", refused.stderr)


if __name__ == "__main__":
    unittest.main()
