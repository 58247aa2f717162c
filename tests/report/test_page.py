"""What the page does in a browser, where there is one."""

import gzip
import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from kdgat.report import Document, Picture, Section, blank
from kdgat.report.document import PLOTLY, render_document
from kdgat.report.style import Key
from kdgat.run import Table
from tests.support.optional import lack

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
# Without its figures and the library, the page is short.
SOURCE = re.compile(r"<script.*?</script>", re.DOTALL)
pytestmark = pytest.mark.processes


def shown(folder: Path, script: str, *, has_figure: bool = True) -> str:
    """Return the page as the browser has it after a script that runs before those of the page."""
    figure = blank(100)
    figure.add_scatter(x=[1, 2], y=[1, 2], legendgroup="seed 0")
    picture = Picture("GAT", figure, "Losses", "Losses fall", (Key("seed 0", "#000000"),))
    table = Table.of(["seed", "error"], [["0", "0.1"]], "many")
    curves = Section(
        "curves", "Curves", pictures={"GAT": [picture]} if has_figure else {}, folded={"Of each seed": [table]}
    )
    path = folder / "report.html"
    page = render_document(Document("Lines", [curves, Section("provenance", "Where", is_open=True)]))
    path.write_text(page.replace("<head>", f"<head><script>{script}</script>", 1), encoding="utf-8")
    if BROWSER is None:
        lack("needs Chromium: tests/report/install.sh installs it on Debian, as root")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'profile'}", path.as_uri()]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=True)
    return SOURCE.sub("", done.stdout)


def folds(page: str) -> list[bool]:
    """Return which of the two sections, and of what is folded in the first, are open."""
    return ["open" in tag for tag in re.findall("<details[^>]*>", page)]


def test_figures_are_drawn_when_their_section_is_opened(tmp_path: Path) -> None:
    page = shown(tmp_path, "location.hash = 'curves';")
    assert folds(page) == [True, False, True]
    assert 'data-drawn="yes"' in page
    assert "<svg" in page


def test_what_a_reader_has_opened_folded_and_pressed_stays_so_when_the_page_loads_again(tmp_path: Path) -> None:
    page = shown(
        tmp_path,
        """window.addEventListener("load", () => setTimeout(() => {
          if (sessionStorage.getItem("again")) return;
          sessionStorage.setItem("again", "yes");
          document.querySelectorAll("details").forEach((one) => (one.open = !one.open));
          document.querySelector(".legend button").click();
          location.hash = "curves";
          location.replace(location.pathname); // as the server asks for
        }, 500));""",
    )
    assert folds(page) == [True, True, False]
    assert 'data-label="seed 0" aria-pressed="false"' in page
    assert 'data-drawn="yes"' in page


def test_a_browser_that_keeps_nothing_draws_the_page_all_the_same(tmp_path: Path) -> None:
    forbid = 'Object.defineProperty(window, "sessionStorage", { get() { throw new Error("forbidden"); } });'
    assert 'data-drawn="yes"' in shown(tmp_path, f"{forbid} location.hash = 'curves';")


def test_a_browser_that_is_too_old_for_the_figures_says_so_once_in_their_place(tmp_path: Path) -> None:
    page = shown(tmp_path, "delete window.DecompressionStream;")
    (text,) = re.findall(r'<div class="missing">(.*?)</div>', page)
    assert "The figures need" in text
    assert 'class="plot"' not in page
    assert "many" in page


@pytest.mark.parametrize("has_figure", [True, False])
def test_nothing_is_folded_on_paper(tmp_path: Path, has_figure: bool) -> None:
    send = 'window.addEventListener("load", () => setTimeout(() => dispatchEvent(new Event("beforeprint")), 500));'
    page = shown(tmp_path, send, has_figure=has_figure)
    assert folds(page) == [True, True, True]
    assert ('data-drawn="yes"' in page) == has_figure


def test_no_figure_has_a_button_that_sends_its_data_to_somebody() -> None:
    library = gzip.decompress((resources.files("kdgat.report") / PLOTLY).read_bytes()).decode()
    sends = set(re.findall(r'name:"(\w*Cloud)",title', library))
    assert sends == {"sendChartToCloud"}, "the buttons are called otherwise by now"
    assert all(name in (resources.files("kdgat.report") / "page.js").read_text() for name in sends)
