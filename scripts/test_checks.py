#!/usr/bin/env python3
"""Tests of the checks: each must fail on an offence planted in a tree of its own, and pass on a clean sample.

    scripts/test_checks.py [NAME ...]     all tests, or those whose names contain NAME

One line for each, `check planted NAME: passed|FAILED|skipped`; a test is skipped where its tool is not installed.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = os.path.dirname(os.path.abspath(__file__))
DOCUMENT = """# Layers
<!-- layers: begin -->
<!-- layers: end -->
# Rooms
<!-- rooms: begin -->
<!-- rooms: end -->
"""


def needs(tool):
    return unittest.skipUnless(shutil.which(tool), f"{tool} is not installed")


def function(lines, head="int counted(int x) {"):
    """A function of so many lines."""
    return "\n".join([head] + ["  ++x;"] * (lines - 3) + ["  return x;", "}", ""])


class Tree(unittest.TestCase):
    """A test with an empty tree of its own."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = temporary.name

    def write(self, path, text):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as f:
            f.write(text)

    def run_in_tree(self, *command):
        return subprocess.run(command, cwd=self.root, text=True, capture_output=True)

    def passes(self, *command):
        done = self.run_in_tree(*command)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn("SKIPPED", done.stdout)

    def fails(self, words, *command):
        """The command must exit 1 and say `words`."""
        done = self.run_in_tree(*command)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn(words, done.stdout + done.stderr)


class Format(Tree):
    SCRIPT = os.path.join(SCRIPTS, "format.sh")

    def setUp(self):
        super().setUp()
        shutil.copy(os.path.join(SCRIPTS, "..", ".clang-format"), self.root)

    @needs("clang-format-14")
    def test_format(self):
        self.write("a.cpp", "int f() { return 1; }\n")
        self.passes(self.SCRIPT, "--check", "a.cpp")
        self.write("a.cpp", "int f(){return 1;}\n")
        self.fails("a.cpp:1", self.SCRIPT, "--check", "a.cpp")
        self.passes(self.SCRIPT, "a.cpp")
        self.passes(self.SCRIPT, "--check", "a.cpp")

    @needs("git")
    def test_long_line_among_the_sources_of_a_checkout(self):
        os.makedirs(os.path.join(self.root, "scripts"))
        script = shutil.copy(self.SCRIPT, os.path.join(self.root, "scripts"))
        self.write("CMakeLists.txt", "# " + "x" * 120 + "\n")
        done = self.run_in_tree(script, "--width")
        self.assertEqual((done.returncode, done.stdout[:8]), (0, "SKIPPED:"))
        self.passes("git", "init", "-q")
        self.fails("CMakeLists.txt:1", script, "--width")

    def test_width_counts_characters(self):
        self.write("a.py", "#" + "é" * 119 + "\n")
        self.passes(self.SCRIPT, "--width", "a.py")
        self.write("a.py", "x = 1\n#" + "é" * 120 + "\n")
        self.fails("a.py:2", self.SCRIPT, "--width", "a.py")
        self.fails("a.py:2", self.SCRIPT, "--check", "a.py")


@needs("ctags")
class Sizes(Tree):
    def passes_sizes(self, path, text):
        self.write(path, text)
        self.passes(sys.executable, os.path.join(SCRIPTS, "check_sizes.py"), "--root", self.root)

    def fails_sizes(self, path, text, words):
        self.write(path, text)
        self.fails(words, sys.executable, os.path.join(SCRIPTS, "check_sizes.py"), "--root", self.root)

    def test_host_function(self):
        self.passes_sizes("src/core/a.cpp", function(60))
        self.fails_sizes("src/core/a.cpp", function(61), "src/core/a.cpp:1: counted() has 61 lines")

    def test_host_function_of_a_cuda_file(self):
        self.passes_sizes("kernels/a_cuda.cu", function(60))
        self.fails_sizes("kernels/a_cuda.cu", function(61), "the limit for host code is 60")

    def test_device_function(self):
        self.passes_sizes("kernels/a.cuh", function(80, "__device__ __forceinline__ int counted(int x) {"))
        self.fails_sizes("kernels/a.cuh", function(81, "__device__ __forceinline__ int counted(int x) {"), "81 lines")

    def test_kernel_with_launch_bounds_and_template(self):
        head = ("template <int D>\n__global__ void __launch_bounds__(Shape<D>::kThreads, Shape<D>::kBlocks)\n"
                "    counted(const int* __restrict__ a, int x) {")
        self.passes_sizes("kernels/a.cuh", function(78, head))
        self.fails_sizes("kernels/a.cuh", function(79, head), "kernels/a.cuh:1: counted() has 81 lines")

    def test_constructor_and_requires(self):
        text = "struct S {\n  explicit S(int x)\n      : x_{x}, y_(x) {\n" + "    ++y_;\n" * 58 + "  }\n};\n"
        self.fails_sizes("src/core/a.h", text, "S() has 61 lines")
        head = "template <class T>\n  requires(sizeof(T) == 4)\nint counted(T x) {"
        self.fails_sizes("src/core/a.h", function(61, head), "63 lines")

    def test_template_that_ctags_does_not_see(self):
        head = "template <class E, size_t N>\nE counted(const std::array<E, N>& table, int x) {"
        self.fails_sizes("src/core/a.h", function(61, head), "counted() has 62 lines")

    def test_lambdas_count_within_their_function(self):
        text = function(61, "int counted(int x) {\n  const auto f = [&] {\n    ++x;\n  };")
        self.fails_sizes("src/core/a.cpp", text, "64 lines")
        self.passes_sizes("src/core/a.cpp", "// Long because: a sample\n" + text)

    def test_reason(self):
        self.passes_sizes("src/core/a.cpp", "// Counts.\n// Long because: a sample\n" + function(61))
        self.fails_sizes("src/core/a.cpp", "// Long because:\n" + function(61), "61 lines")
        self.fails_sizes("src/core/a.cpp", "// Long because: a sample\n\n" + function(61), "61 lines")

    def test_function_of_a_test(self):
        self.passes_sizes("tests/a_test.cpp", function(120))
        self.fails_sizes("tests/a_test.cpp", function(121), "121 lines")

    def test_files(self):
        self.passes_sizes("src/core/a.h", "int x;\n" * 150)
        self.fails_sizes("src/core/a.h", "int x;\n" * 151, "src/core/a.h:1: the file has 151 lines")
        self.passes_sizes("src/core/a.h", "#pragma once\n// Long because: a sample\n" + "int x;\n" * 150)
        self.passes_sizes("kernels/a.cuh", "int x;\n" * 400)
        self.fails_sizes("kernels/a.cuh", "int x;\n" * 401, "kernels/a.cuh:1: the file has 401 lines")
        self.write("kernels/a.cuh", "")
        self.passes_sizes("src/model/archs/a.cpp", "int x;\n" * 150)
        self.fails_sizes("src/model/archs/a.cpp", "int x;\n" * 151, "the limit for a family of models is 150")

    def test_folder(self):
        for number in range(40):
            self.write(f"src/core/a{number}.h", "")
        self.passes_sizes("src/core/inside/a.h", "")
        self.fails_sizes("src/core/one_more.cpp", "", "src/core/: 41 source files")


class Layers(Tree):
    CHECK = (sys.executable, os.path.join(SCRIPTS, "check_layers.py"), "--root")

    def setUp(self):
        super().setUp()
        self.write("docs/architecture.md", DOCUMENT)
        for path in ("src/core/base.h", "src/run/engine.h", "kernels/exec/exec.h", "kernels/decode/decode.h",
                     "kernels/products/marlin/marlin.h", "kernels/products/bytes/bytes.h"):
            self.write(path, "")
        self.passes(*self.CHECK, self.root, "--write")

    def passes_with(self, path, text):
        self.write(path, text)
        self.passes(*self.CHECK, self.root)

    def fails_with(self, path, text, words):
        self.write(path, text)
        self.fails(words, *self.CHECK, self.root)

    def test_clean(self):
        self.passes_with("kernels/model/a.h", '#include <vector>\n\n#include "kernels/exec/exec.h"\n')
        self.passes_with("kernels/model/b.h", '#include "src/core/base.h"\n')
        self.passes_with("kernels/model/a_cuda.cu", "#include <cuda_fp16.h>\n")

    def test_unknown_library(self):
        self.fails_with("src/core/a.cpp", "#include <boost/any.hpp>\n", "src/core/a.cpp:1: <boost/any.hpp> is neither")

    def test_library_out_of_place(self):
        self.fails_with("src/core/a.cpp", "#include <cuda_runtime.h>\n", "CUDA headers belong")
        self.fails_with("src/core/a.cpp", "#include <cblas.h>\n", "BLAS")
        self.fails_with("src/core/a.h", "#include <nlohmann/json.hpp>\n", "JSON belongs in .cpp files")

    def test_not_from_the_root(self):
        self.fails_with("src/core/a.cpp", '#include "base.h"\n', '"base.h" does not exist')
        self.fails_with("src/core/a.cpp", "#include <src/core/base.h>\n", "is neither")

    def test_layer(self):
        self.fails_with("src/core/a.h", '\n#include "src/run/engine.h"\n',
                        "src/core/a.h:2: src/core may not include src/run")

    def test_room(self):
        self.fails_with("kernels/exec/a.h", '#include "kernels/decode/decode.h"\n',
                        "kernels/exec may not include kernels/decode")

    def test_families_of_products_apart(self):
        self.fails_with("kernels/products/marlin/a.h", '#include "kernels/products/bytes/bytes.h"\n',
                        "kernels/products/marlin may not include kernels/products/bytes")

    def test_unknown_room(self):
        self.fails_with("kernels/attic/a.h", "", "kernels/attic is not a room")
        self.fails_with("kernels/a.h", "", "kernels/. is not a room")

    def test_circle(self):
        self.write("src/core/a.h", '#include "src/core/b.h"\n')
        self.fails_with("src/core/b.h", '#include "src/core/a.h"\n', "src/core/a.h -> src/core/b.h -> src/core/a.h")

    def test_table_against_its_order(self):
        with open(self.CHECK[1], encoding="utf-8") as f:
            self.write("scripts/check_layers.py", f.read().replace('"exec": []', '"exec": ["decode"]'))
        self.fails("exec may include decode", sys.executable, "scripts/check_layers.py", "--root", self.root)

    def test_document_out_of_date(self):
        path = os.path.join(self.root, "docs/architecture.md")
        with open(path, encoding="utf-8") as f:
            text = f.read()
        self.assertIn("| `src/core` (fewbit_core) |", text)
        self.fails_with("docs/architecture.md", text.replace("`src/core`", "`src/kern`"), "--write")
        self.fails_with("docs/architecture.md", text.replace("<!-- rooms: end -->", ""), "<!-- rooms: end -->")


@needs("git")
@needs("clang-tidy-16")
class Tidy(Tree):
    CLEAN = "int* nothing() { return nullptr; }\n"
    PLANTED = "int* nothing() { return 0; }\n"

    def setUp(self):
        super().setUp()
        os.makedirs(os.path.join(self.root, "scripts"))
        shutil.copy(os.path.join(SCRIPTS, "tidy.sh"), os.path.join(self.root, "scripts"))
        shutil.copy(os.path.join(SCRIPTS, "..", ".clang-tidy"), self.root)
        self.git("init", "-q", "-b", "main")
        self.write("src/core/old.cpp", self.PLANTED)
        self.write("src/core/a.cpp", self.CLEAN)
        self.compile_commands("src/core/a.cpp", "src/core/old.cpp")
        self.commit()

    def git(self, *arguments):
        self.passes("git", "-c", "user.name=test", "-c", "user.email=test@localhost", *arguments)

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "change")

    def compile_commands(self, *files):
        root = os.path.realpath(self.root)
        entries = [{"directory": root, "file": os.path.join(root, f), "command": f"c++ -std=c++20 -c {root}/{f}"}
                   for f in files]
        self.write("build-cpu/compile_commands.json", json.dumps(entries))

    def test_changed_file_on_a_branch(self):
        self.git("checkout", "-q", "-b", "branch")
        self.write("src/core/a.cpp", self.CLEAN + "// changed\n")
        self.commit()
        self.passes("scripts/tidy.sh", "--changed")
        self.write("src/core/a.cpp", self.PLANTED)
        self.fails("modernize-use-nullptr", "scripts/tidy.sh", "--changed")
        self.commit()
        self.fails("modernize-use-nullptr", "scripts/tidy.sh", "--changed")

    def test_sources_that_are_compiled_together(self):
        together = "build-cpu/CMakeFiles/core.dir/Unity/unity_0_cxx.cxx"
        core = os.path.realpath(self.root) + "/src/core"
        self.write(together, f'#include "{core}/a.cpp"\n\n#include "{core}/old.cpp"\n')
        self.compile_commands(together)
        self.write("src/core/a.cpp", self.PLANTED)
        self.commit()
        self.fails("src/core/a.cpp", "scripts/tidy.sh", "--changed")

    def test_last_landing_on_main(self):
        self.write("src/core/a.cpp", self.PLANTED)
        self.commit()
        self.fails("src/core/a.cpp", "scripts/tidy.sh", "--changed")

    def test_without_a_base_or_a_build(self):
        done = self.run_in_tree("scripts/tidy.sh", "--changed")
        self.assertEqual((done.returncode, done.stdout[:8]), (0, "SKIPPED:"))
        shutil.rmtree(os.path.join(self.root, "build-cpu"))
        done = self.run_in_tree("scripts/tidy.sh", "--changed")
        self.assertEqual((done.returncode, done.stdout[:8]), (0, "SKIPPED:"))
        self.assertIn("configure a build", done.stdout)

    def test_limit(self):
        self.git("checkout", "-q", "-b", "branch")
        self.write("src/core/a.cpp", self.CLEAN + "// changed\n")
        self.write("src/core/old.cpp", self.PLANTED + "// changed\n")
        self.commit()
        done = self.run_in_tree("scripts/tidy.sh", "--changed", "--limit", "1")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("looking at the first 1, not at: src/core/old.cpp", done.stdout)


@needs("git")
@needs("cmake")
@needs("ninja")
class Merged(Tree):
    """Two sources with one name pass alone, and together where theirs differ."""

    def test_a_name_twice(self):
        os.makedirs(os.path.join(self.root, "scripts"))
        shutil.copy(os.path.join(SCRIPTS, "merged.sh"), os.path.join(self.root, "scripts"))
        self.write("CMakeLists.txt", "cmake_minimum_required(VERSION 3.20)\nproject(p CXX)\n"
                   "set(CMAKE_EXPORT_COMPILE_COMMANDS ON)\nadd_library(p a.cpp b.cpp)\n"
                   "set_target_properties(p PROPERTIES UNITY_BUILD ${FEWBIT_PRECOMPILE})\n")
        source = "namespace { int NAME() { return 1; } }\nint of_NAME() { return NAME(); }\n"
        self.write("a.cpp", source.replace("NAME", "run"))
        self.write("b.cpp", source.replace("NAME", "walk"))
        self.passes("scripts/merged.sh")
        self.write("b.cpp", source.replace("NAME", "run"))
        done = self.run_in_tree("scripts/merged.sh")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("redefinition", done.stderr)


class Readme(unittest.TestCase):
    """A figure that was changed by hand is found; another time of a step is not looked at."""

    TABLE = """| method | size | perplexity / bf16's | median step |
|---|---|---|---|
| gptq | 3.55 MiB | 1.0334 ± 0.0047 | 0.452 ms |
"""

    def test_figures(self):
        from readme_check import SENTENCES, differences, perplexity_differences, rows_of

        found = rows_of(self.TABLE.replace("1.0334", "1.0340").replace("0.452", "7.1"))
        self.assertEqual(differences(rows_of(self.TABLE), found), [])
        for said, changed in (("1.0334", "1.0534"), ("0.0047", "0.0147"), ("3.55", "3.65")):
            self.assertEqual(len(differences(rows_of(self.TABLE.replace(said, changed)), found)), 1, changed)
        text = "bf16's own perplexity there is 36.17 ± 1.43"
        self.assertEqual(perplexity_differences(text, SENTENCES[:1], [(36.2, 1.4)]), [])
        self.assertEqual(len(perplexity_differences(text, SENTENCES[:1], [(40.2, 1.4)])), 1)
        self.assertEqual(len(perplexity_differences("no figure", SENTENCES[:1], [(36.2, 1.4)])), 1)


class Lines(unittest.TextTestResult):
    """One line for each test, as scripts/count_tests.py reads them."""

    def say(self, test, result):
        self.stream.writeln(f"check planted {type(test).__name__}.{test._testMethodName[5:]}: {result}")

    def addSuccess(self, test):
        self.say(test, "passed")

    def addSkip(self, test, reason):
        self.stream.writeln(f"SKIPPED: {reason}")
        self.say(test, "skipped")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.stream.writeln(self.failures[-1][1])
        self.say(test, "FAILED")

    def addError(self, test, err):
        super().addError(test, err)
        self.stream.writeln(self.errors[-1][1])
        self.say(test, "FAILED")

    def printErrors(self):
        pass


def main():
    if any(a.startswith("-") for a in sys.argv[1:]):
        print(__doc__)
        return 0 if sys.argv[1] in ("-h", "--help") else 2
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{name}*" for name in sys.argv[1:]] or None
    suite = loader.loadTestsFromModule(sys.modules[__name__])
    runner = unittest.TextTestRunner(stream=sys.stdout, resultclass=Lines, verbosity=0)
    return 0 if runner.run(suite).wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
