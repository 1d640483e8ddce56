"""Plants one violation of each kind in a small tree and asks check_layers.py to find it."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "check_layers.py"

PLANTED = [
    ("src/fovea/attention/a.cc", '#include "fovea/selector/block_selector.h"', "attention must not include selector"),
    ("src/fovea/tensor/a.h", '#include "fovea/ops/matmul.h"', "tensor must not include ops"),
    ("src/fovea/ops/a.cc", '#include "fovea/engine/session.h"', "ops must not include engine"),
    ("src/fovea/tokenizer/a.cc", '#include "fovea/model_io/gguf.h"', "tokenizer must not include model_io"),
    ("src/fovea/worth/a.cc", '#include "fovea/engine/session.h"', "worth must not include engine"),
    ("src/fovea/trace/a.cc", '#include "fovea/tensor/tensor.h"', "trace must not include tensor"),
    ("src/fovea/attention/attention.cc", "#include <cuda_runtime.h>", "only */cuda/ includes CUDA headers"),
    ("src/fovea/engine/a.cc", "  #  include <cublasLt.h>", "only */cuda/ includes CUDA headers"),
    ("src/fovea/engine/a.cc", "#include <httplib.h>", "only apps/server/ and the sweep's client know HTTP"),
    ("apps/cli/a.cc", "#include <httplib.h>", "only apps/server/ and the sweep's client know HTTP"),
    ("src/fovea/engine/a.cc", "#include <Python.h>", "only python/ knows Python"),
    ("src/fovea/attention/reference/a.cc", '#include "fovea/attention/cpu/tiles.h"', "reference/ includes only"),
    ("src/fovea/engine/a.cc", '#include "session.h"', "write includes from the root"),
    ("src/fovea/engine/a.cc", '#include "tests/cases/attention_cases.h"', "the library does not include"),
    ("src/fovea/misc/a.cc", "// a folder nobody drew", "is not in the picture"),
    ("src/fovea/base/long.cc", "\n" * 801, "at most 800"),
]

CLEAN = [
    ("src/fovea/selector/a.cc", '#include "fovea/attention/kv_view.h"\n#include <vector>'),
    ("src/fovea/attention/cuda/a.cuh", "#include <cuda_runtime.h>"),
    ("src/fovea/attention/reference/a.cc", '#include "fovea/attention/attention.h"'),
    ("apps/server/a.cc", "#include <httplib.h>"),
    ("apps/cli/sweep_server.cc", "#include <httplib.h>"),
    ("tests/engine/a_test.cc", '#include "tests/cases/attention_cases.h"'),
]


def run(files):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "src" / "fovea").mkdir(parents=True)
        for name, text in files:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        done = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True)
        return done.returncode, done.stdout


class CheckLayers(unittest.TestCase):
    def test_finds_each_planted_violation(self):
        for name, text, message in PLANTED:
            with self.subTest(file=name, message=message):
                code, output = run(CLEAN + [(name, text)])
                self.assertEqual(code, 1)
                self.assertEqual(len(output.splitlines()), 1, output)
                self.assertIn(name, output)
                self.assertIn(message, output)

    def test_accepts_a_clean_tree(self):
        self.assertEqual(run(CLEAN), (0, "layers: no violation\n"))


if __name__ == "__main__":
    unittest.main()
