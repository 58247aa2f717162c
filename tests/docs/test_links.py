"""Links between the pages of the repository lead somewhere, on a forge as on the site."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """Return the names that a forge, and the site, gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    plain = (re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", heading).lower().strip() for heading in headings)
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading)) for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    dead = []
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        found = (page.parent / path).resolve() if path else page
        if not found.exists() or (anchor and anchor not in anchors(found)):
            dead.append(target)
    assert dead == []


def test_the_first_page_is_short_and_has_a_picture() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert "](docs/overview.svg)" in text
