"""Draw how time and memory grow with the data: two SVG pictures of what the benchmarks of growth wrote.

    python benchmarks/preparation.py growth --messages 100000 1000000 10000000 100000000 --out rows.jsonl
    python benchmarks/store_growth.py --out rows.jsonl
    python benchmarks/growth.py rows.jsonl --out benchmarks

Writes growth_time.svg (processor time of a message or graph) and growth_memory.svg. Of rows measured more than once the
last one counts.
"""

import argparse
import json
import math
from pathlib import Path

from kdgat.report import Picture, blank
from kdgat.report.drawing import as_svg
from kdgat.report.style import series_style

UNITS = {"us": ("growth_time", "processor time of one, us"), "mb": ("growth_memory", "memory, MB")}


def main() -> None:
    """Read the rows, write both pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the pictures")
    arguments = parser.parse_args()
    found: dict[str, dict[int, dict[str, float]]] = {}
    for line in arguments.rows.read_text().splitlines():
        row = json.loads(line)
        found.setdefault(row["what"], {})[row["size"]] = row
    for unit, (name, meaning) in UNITS.items():
        figure = blank(240, x=f"10 to the power of: messages or graphs (across); {meaning} (up)")
        for number, (what, rows) in enumerate(found.items()):
            sizes = sorted(rows)
            figure.add_scatter(
                x=[math.log10(size) for size in sizes],
                y=[max(rows[size][unit], 1.0) if unit == "mb" else rows[size][unit] for size in sizes],
                mode="lines",
                line=series_style(number),
                name=what,
            )
        figure.update_yaxes(type="log")
        path = arguments.out / f"{name}.svg"
        path.write_text(as_svg(Picture(name, figure, meaning, meaning)) + "\n")
        print(path)


if __name__ == "__main__":
    main()
