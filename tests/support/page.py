"""A report page as tests look at it."""

from __future__ import annotations

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path

LARGEST_BYTES = 2_000_000


def unpacked(text: str) -> bytes:
    return gzip.decompress(base64.b64decode(text))


class Page(HTMLParser):
    """What a browser would load, and what it would draw."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.plots: dict[str, str] = {}
        self.data: dict[str, str] = {}  # of each figure, as JSON
        self.packed: dict[str, str] = {}  # what travels compressed, by the id of its script
        self.text: list[str] = []
        self.tags: list[str] = []
        self.row_names: list[str] = []
        self._data_of: str | None = None
        self.feed(text)
        figures = json.loads(unpacked(self.packed["figures"])) if "figures" in self.packed else []
        self.data = {f"figure-{number}-data": json.dumps(figure) for number, figure in enumerate(figures)}

    @classmethod
    def of_report(cls, path: Path) -> Page:
        """Read a report: it loads nothing from elsewhere, holds plotly once, and describes each figure in words."""
        page = cls(path.read_text(encoding="utf-8"))
        assert [target for target in page.loads if not target.startswith(("#", "data:"))] == []
        assert not page.plots or b"plotly.js (basic - minified) v" in unpacked(page.packed["plotly"])
        assert path.stat().st_size < LARGEST_BYTES
        for identifier, alternative in page.plots.items():
            assert re.match(r"img: .{20,}", alternative)
            figure = json.loads(page.data[f"{identifier}-data"])
            assert figure["data"], identifier
            repeated = figure["layout"]["template"].keys() - {"data"}
            assert not repeated, "the default template would be in every figure"
        return page

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.tags.append(tag)
        self.loads += [str(found[name]) for name in ("src", "href") if found.get(name)]
        if found.get("class") == "plot":
            self.plots[str(found["id"])] = f"{found['role']}: {found['aria-label']}"
        self._data_of = found.get("id") if tag == "script" else None

    @property
    def _is_in_heading(self) -> bool:
        """Return whether the last tag that is no place for a line break opened a heading of a row."""
        return next((tag for tag in reversed(self.tags) if tag != "wbr"), "") == "th"

    def handle_endtag(self, tag: str) -> None:
        self.tags.append("/" + tag)

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script":
            if self._data_of:
                self.packed[self._data_of] = self.packed.get(self._data_of, "") + data
            return
        self.text.append(data)
        if self.tags and self.tags[-1] == "th":
            self.row_names.append(data)
        elif self._is_in_heading:
            self.row_names[-1] += data  # a long name may break at its underscores

    def words(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.text))
