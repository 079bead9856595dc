"""Times `bertsmith demo` from an empty folder and keeps its tables: bench/records/demo.json.

python bench/demo.py [--out runs/bench_demo]
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from record import RECORDS, write_record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/bench_demo"))
    options = parser.parse_args()
    shutil.rmtree(options.out, ignore_errors=True)
    begin = time.monotonic()
    command = [sys.executable, "-m", "bertsmith", "demo", "--out", str(options.out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = time.monotonic() - begin
    print(done.stdout)
    found = json.loads((options.out / "result.json").read_text())
    task = found["task"]
    write_record(
        "demo",
        about=f"{seconds / 60:.1f} minutes from text to report, {found['seconds'] / 60:.1f} of them pre-training "
        f"({found['steps']:,} steps, recipe {found['recipe']}). Task: {len(task['labels'])} labels, {task['train']} "
        f"labelled texts, {task['test']} to test, 3 samples of labelled texts.",
        minutes=round(seconds / 60, 2),
        **found,
    )
    kept = [line for line in done.stderr.splitlines() if not line.startswith("pretrain ")]
    (RECORDS / "demo.log").write_text("\n".join([*kept, done.stdout]).replace(str(options.out), "OUT"))


if __name__ == "__main__":
    main()
