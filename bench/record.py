"""What every benchmark record carries: command, commit, machine, versions, and when.

Written as JSON beside its raw log.
"""

import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parent
RECORDS = BENCH / "records"


def machine() -> dict[str, Any]:
    """Processor, cores and versions; no host or path names."""
    import torch

    cpu = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    capabilities = torch.cpu.get_capabilities()
    units = [name for name in ("avx2", "avx512_f", "avx512_bf16", "amx_bf16") if capabilities.get(name)]
    return {
        "cpu": cpu,
        "units": units,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


COMMIT = subprocess.run(  # when the program began, not when it had measured
    ["git", "describe", "--always", "--dirty"], cwd=BENCH, capture_output=True, text=True, check=False
).stdout.strip()


def write_record(name: str, **values: Any) -> Path:
    """bench/records/NAME.json; arguments of the command that are paths are cut to their last part."""
    command = " ".join(["python", f"bench/{Path(sys.argv[0]).name}", *(shown(argument) for argument in sys.argv[1:])])
    record = {
        "name": name,
        "command": command,
        "commit": COMMIT or "unknown",
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        **values,
    }
    RECORDS.mkdir(exist_ok=True)
    path = RECORDS / f"{name}.json"
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return path


def shown(argument: str) -> str:
    return f".../{Path(argument).name}" if argument.startswith(("/", "..")) else argument
