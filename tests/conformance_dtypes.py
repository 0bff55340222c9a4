"""Keep what a report on PyTorch's operator database says of one dtype; docs/operators.md shows it.

    python tests/conformance_dtypes.py DTYPE REPORT

REPORT is what the measuring tool wrote for the entries that the page is about (see `conformance.py`): {"ops": [{"name",
"variant", "fwd_pass", "fwd_total", "grad_pass", "grad_total", "errors", ...}, ...]}, one record an entry. Kept are the number
of entries all of whose samples pass, and the entries that do not, in tests/conformance_dtypes.json. Then run `python
docs/generate`; an entry without a reason on the page fails tests/docs/test_generated.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

KEPT = Path(__file__).with_name("conformance_dtypes.json")
KINDS = {"forward": "fwd", "gradient": "grad"}


def summarised(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Entries passed and run, forward and backward, and those that do not pass: samples passed and run, the first fault."""
    found: dict[str, Any] = {"failing": {}}
    for kind, short in KINDS.items():
        run = [r for r in records if r[f"{short}_total"]]
        found[kind] = [sum(r[f"{short}_pass"] == r[f"{short}_total"] for r in run), len(run)]
    for record in records:
        counts = {kind: [record[f"{short}_pass"], record[f"{short}_total"]] for kind, short in KINDS.items()}
        if any(passed < total for passed, total in counts.values()):
            name = "/".join(filter(None, (record["name"], record["variant"])))
            found["failing"][name] = {**counts, "fault": " ".join((record["errors"] or [""])[0].split())[:160]}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dtype")
    parser.add_argument("report", type=Path)
    parser.add_argument("--kept", type=Path, default=KEPT, metavar="FILE", help="where it is kept")
    arguments = parser.parse_args()
    kept = json.loads(arguments.kept.read_text(encoding="utf-8")) if arguments.kept.exists() else {}
    kept[arguments.dtype] = summarised(json.loads(arguments.report.read_text(encoding="utf-8"))["ops"])
    arguments.kept.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
