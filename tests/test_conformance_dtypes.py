"""What is kept of a report: counts of entries, and those that do not pass."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("conformance_dtypes.py")


def record(name, forward, gradient, variant="", errors=()):
    return {
        "name": name, "variant": variant, "fwd_pass": forward[0], "fwd_total": forward[1], "grad_pass": gradient[0],
        "grad_total": gradient[1], "errors": list(errors),
    }  # fmt: skip


def test_counts_and_failing_entries_are_kept_beside_other_dtypes(tmp_path):
    ops = [
        record("exp", (3, 3), (3, 3)),
        record("eq", (2, 2), (0, 0)),
        record("sum", (4, 4), (1, 2), "dim", ["grad[1]:  1 of 2\ndiffer"]),
    ]
    report, kept = tmp_path / "report.json", tmp_path / "kept.json"
    report.write_text(json.dumps({"ops": ops}))
    kept.write_text(json.dumps({"float32": {"failing": {}}}))
    subprocess.run([sys.executable, SCRIPT, "float64", report, "--kept", kept], check=True)
    found = json.loads(kept.read_text())
    assert found["float32"] == {"failing": {}}
    assert found["float64"]["forward"] == [3, 3] and found["float64"]["gradient"] == [1, 2]
    assert found["float64"]["failing"] == {
        "sum/dim": {"forward": [4, 4], "gradient": [1, 2], "fault": "grad[1]: 1 of 2 differ"}
    }
