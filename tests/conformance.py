"""Run PyTorch's operator database against the package and compare with the kept counts, which may only rise.

    python tests/conformance.py TOOL                      # every kept group; exit 1 if a count fell
    python tests/conformance.py TOOL --keep               # the same, then keep the counts that rose
    python tests/conformance.py TOOL --keep --group NAME  # start keeping (or measure again) this group

TOOL is the path of the script that measures (and words that come before the others, if it is a script that runs another);
it takes `tensorsmith --json FILE --group NAME ...` and writes
{"ops": [{"group", "fwd_pass", "fwd_total", "grad_pass", "grad_total", ...}, ...]}, one record an operator.
The kept counts are the passed samples of every group, in tests/conformance_counts.json. The groups are shared among as many
processes as there are processors.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

KEPT = Path(__file__).with_name("conformance_counts.json")
COUNTS = ("fwd_pass", "grad_pass")

Counts = dict[str, dict[str, int]]


def measure(tool: list[str], groups: list[str]) -> Counts:
    """The samples that pass now, by group."""
    count = min(os.cpu_count() or 1, len(groups))
    shares = [groups[n::count] for n in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        reports = [Path(folder) / f"report{n}.json" for n in range(len(shares))]
        running = []
        for share, report in zip(shares, reports):
            command = [sys.executable, *tool, "tensorsmith", "--json", str(report)]
            running.append(subprocess.Popen(command + [word for group in share for word in ("--group", group)]))
        for process in running:
            if process.wait():
                raise subprocess.CalledProcessError(process.returncode, process.args)
        records = [record for report in reports for record in json.loads(report.read_text())["ops"]]
    counts: Counts = {group: dict.fromkeys(COUNTS, 0) for group in groups}
    for record in records:
        for name in COUNTS:
            counts[record["group"]][name] += record[name]
    return counts


def compare(kept: Counts, found: Counts) -> tuple[list[str], list[str]]:
    """What fell and what rose, as lines to print."""
    fell, rose = [], []
    for group, counts in found.items():
        for name, count in counts.items():
            before = kept.get(group, {}).get(name, 0)
            line = f"{group}: {name} {before} -> {count}"
            if count < before:
                fell.append(line)
            elif count > before:
                rose.append(line)
    return fell, rose


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", nargs="+", help="the script that measures")
    parser.add_argument("--group", action="append", default=[], help="only this group; may be given several times")
    parser.add_argument("--keep", action="store_true", help="write the counts that rose to the kept file")
    parser.add_argument("--counts", type=Path, default=KEPT, metavar="FILE", help="the kept counts")
    arguments = parser.parse_args()
    kept: Counts = json.loads(arguments.counts.read_text())
    groups = arguments.group or list(kept)
    if not groups:
        print(f"{arguments.counts} keeps no group yet; start with --keep --group NAME", file=sys.stderr)
        return 1
    found = measure(arguments.tool, groups)
    fell, rose = compare(kept, found)
    for line in fell:
        print(f"FELL  {line}")
    for line in rose:
        print(f"rose  {line}")
    if arguments.keep and not fell:
        arguments.counts.write_text(json.dumps(dict(sorted((kept | found).items())), indent=2) + "\n")
        print(f"kept in {arguments.counts}")
    elif rose:
        print("keep the new counts with --keep")
    return 1 if fell else 0


if __name__ == "__main__":
    sys.exit(main())
