"""Plants what ptxas says about a bad kernel and asks check_ptxas.py to fail the build."""
import pathlib
import subprocess
import sys
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "check_ptxas.py"

BAD = [
    "    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads",
    "    0 bytes stack frame, 0 bytes spill stores, 12 bytes spill loads",
    *(
        f"ptxas info    : (C75{number}) Potential Performance Loss: as ptxas says it"
        for number in ("08", "10", "11", "12", "17", "19")
    ),
]
GOOD = "ptxas info    : Used 168 registers\n    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"


def run(report, code=0):
    compiler = [sys.executable, "-c", f"import sys; sys.stderr.write({report + chr(10)!r}); sys.exit({code})"]
    return subprocess.run([sys.executable, SCRIPT, *compiler], capture_output=True, text=True, check=False)


class CheckPtxas(unittest.TestCase):
    def test_bad_reports_fail_and_are_shown(self):
        for report in BAD:
            result = run(report)
            self.assertEqual(result.returncode, 1, report)
            self.assertIn(report.strip(), result.stderr)

    def test_good_reports_pass_in_silence(self):
        result = run(GOOD)
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_the_compilers_own_failure_and_words_come_through(self):
        result = run("error: no such file", 3)
        self.assertEqual(result.returncode, 3)
        self.assertIn("no such file", result.stderr)


if __name__ == "__main__":
    unittest.main()
