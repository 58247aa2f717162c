"""The page of a check: a heading and a table for each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


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
