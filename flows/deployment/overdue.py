"""Nights that do not come: what `make deploy` noted of them, held against the reports that nights leave.

It asks no server, as that may be what does not run, and loads nothing: every `kdgat` on a terminal looks here.
"""

import json
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from kdgat.base.text import describe_seconds

NOTE: Final = "nights.json"  # in the installation's home
REFUSED_REPORTS: Final = "-refused.md"  # end of the names of reports of nights that failed


def home_of(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the home of the installation that is meant, whether there is one or not."""
    return Path(environment.get("KDGAT_HOME") or Path.home() / ".kdgat").expanduser().absolute()


def find_overdue(home: Path) -> list[str]:
    """State which nights have not completed for longer than they may, each in a sentence."""
    return [
        f"{name}: no night has completed for {describe_seconds(time.time() - last)}, since "
        f"{datetime.fromtimestamp(last, UTC):%Y-%m-%d %H:%M} UTC"
        for name, night in read_nights(home).items()
        if time.time() - (last := _last(night)) > float(night["patience_s"])
    ]


def read_nights(home: Path) -> dict[str, dict[str, Any]]:
    """Read which nights ought to come; none where nothing was noted, or it cannot be read."""
    try:
        found = json.loads((home / NOTE).read_text(encoding="utf-8"))
        return {name: night for name, night in found.items() if {"out", "since", "patience_s"} <= night.keys()}
    except (OSError, ValueError, AttributeError):
        return {}


def _last(night: Mapping[str, Any]) -> float:
    """Return when a night last completed; of one that never has, since when it ought to come."""
    times = [float(night["since"])]
    for path in Path(night["out"], "reports").glob("*.md"):
        if not path.name.endswith(REFUSED_REPORTS):
            try:
                times.append(path.stat().st_mtime)
            except OSError:  # somebody removes it at this moment
                continue
    return max(times)
