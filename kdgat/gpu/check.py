"""Try the parts of a check one after the other, and write what they found after each."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

from kdgat.base import write_bytes_atomically, write_json_atomically
from kdgat.stage import package_version

SCHEMA: Final = 1
RESULT, PAGE = "gpu_check.json", "gpu_check.md"
PACKAGES: Final = ("kdgat", "torch", "triton", "torch-geometric", "lightning", "numpy", "h5py")
OWN_ERROR: Final = re.compile(r"kdgat\.[\w.]+: ")  # the type before a sentence of ours
FIRST: Final = "card"  # without it there is nothing to try


@dataclass(frozen=True)
class Part:
    """One part of the check: a function of the device and of the `Rows` that it adds to."""

    title: str
    function: str  # "module:name"
    limit_s: float
    note: str = ""  # how to read the table


PARTS: Final[dict[str, Part]] = {
    "card": Part("The card, and what this torch has for it", "kdgat.gpu.card:describe", 60),
    "numbers": Part(
        "Loss and gradient of each network, against the processor",
        "kdgat.gpu.numbers:compare",
        240,
        "Relative differences, without dropout. In single precision they should be below "
        "1e-5; of assignment below 1e-3, whose sweeps magnify the last digit.",
    ),
    "repeats": Part(
        "Two trainings of 50 steps from one seed",
        "kdgat.gpu.repeats:compare",
        150,
        "`difference` is the largest between their weights; 0 means bit for bit the same.",
    ),
    "speed": Part(
        "Training steps",
        "kdgat.gpu.speed:measure",
        240,
        "Milliseconds of a step and its pieces, medians. `kernels_ms` is what the card computes in a step, by the "
        "profiler; `busy` is its part of the step. `cpu_ms` is the same step on one core.",
    ),
    "survival": Part(
        "Killed by SIGKILL and resumed, also with captured steps, and how fast these are; too little memory",
        "kdgat.gpu.survival:compare",
        300,
        "With little memory nothing is captured; batches go through in parts, and their sums are rounded differently.",
    ),
    "sharing": Part(
        "Several trainings on one card",
        "kdgat.gpu.sharing:measure",
        150,
        "Each is a process with one thread; graphs per second of all together.",
    ),
    "rapids": Part("RAPIDS", "kdgat.gpu.rapids:compute", 90),
}  # fmt: skip


def check_gpu(
    out: Path, device: str, parts: Sequence[str] = tuple(PARTS), say: Callable[[str], object] = print
) -> dict[str, Any]:
    """Try parts of the check, write JSON and page into `out` after each, and return what was found.

    A part that fails, or takes longer than its limit, is noted with its error, and the next one is tried; without a
    card that can be used none is, and nothing is written.
    """
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "packages": {name: package_version(name) for name in PACKAGES},
        "parts": {},
    }
    for name in parts:
        part = PARTS[name]
        say(f"{part.title} (up to {part.limit_s:.0f} s) ...")
        report["parts"][name] = found = run_part(name, device)
        say(f"  {found['seconds']:.0f} s" + (f": {found['error']}" if found["error"] else ""))
        if name == FIRST and found["error"]:
            return report
        out.mkdir(parents=True, exist_ok=True)
        write_json_atomically(out / RESULT, report)
        write_bytes_atomically(out / PAGE, render(report).encode())
    say(f"{out / RESULT} has all numbers, {out / PAGE} shows them")
    return report


def run_part(name: str, device: str) -> dict[str, Any]:
    """Run one part in a process of its own; return its rows, its seconds and its error ("" for none)."""
    part, began = PARTS[name], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kdgat-gpu-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "rows.json"
        command = [sys.executable, "-P", "-m", "kdgat.gpu.check", part.function, device, str(path)]
        error, process = "", subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            errors="replace", text=True,
        )  # fmt: skip
        try:
            printed, _ = process.communicate(timeout=part.limit_s)
            if process.returncode:
                lines = [line for line in printed.splitlines() if line.strip()] or [f"status {process.returncode}"]
                error = OWN_ERROR.sub("", lines[-1])
        except subprocess.TimeoutExpired:
            error = f"did not end within {part.limit_s:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)  # with what it started
            process.communicate()
        rows = json.loads(path.read_text()) if path.exists() else []
    return {"title": part.title, "note": part.note, "rows": rows, "error": error, "seconds": time.monotonic() - began}


class Rows(list[dict[str, Any]]):
    """Rows of a table, kept in a file as they come: a part that is cut off has told what it knew."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def add(self, **row: Any) -> None:
        """Append one row."""
        self.append(row)
        write_json_atomically(self._path, list(self))


if __name__ == "__main__":
    function, chosen, file = sys.argv[1:]
    resolve_name(function)(chosen, Rows(Path(file)))


def render(report: Mapping[str, Any]) -> str:
    """Return the Markdown page of what was found."""
    packages = ", ".join(f"{name} {version}" for name, version in report["packages"].items() if version)
    lines = [
        "# GPU check",
        "",
        f"{report['begun']}, Python {report['python']} on {report['machine']}, {report['cores']} cores; {packages}.",
    ]
    for part in report["parts"].values():
        lines += ["", f"## {part['title']}", ""]
        if part["error"]:
            lines += [f"**{part['error']}**", ""]
        lines += table(part["rows"])
        if part["note"]:
            lines += ["", part["note"]]
    return "\n".join([*lines, ""])


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table that has a column for each key of any row."""
    if not rows:
        return ["Nothing was found."]
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    return [*lines, *(f"| {' | '.join(cell(row.get(name)) for name in names)} |" for row in rows)]


def cell(value: Any) -> str:
    """Return a value as a cell shows it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value).replace("|", "/").replace("\n", " ")
