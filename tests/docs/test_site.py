"""The site: built without a warning, complete, and readable without a network."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer.main

from kdgat.cli.config import keys_of
from kdgat.cli.main import COMMAND_GROUPS, build_application
from kdgat.family import find_family
from tests.support.page import Page

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it as `make docs` does: a dead link, and what the code has and no page describes, is an error."""
    path = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(path)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return path


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """Return the module that makes pages of the code."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate"] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


def test_nothing_on_it_is_fetched_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for path in pages:
        text = path.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=[\"']?([^\"'\s>]+)", text)
        assert loaded
        assert not [target for target in loaded if re.match(r"(https?:)?//", target)], path
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.findall(r"url\([\"']?https?:", styles)


def test_the_reference_counts_the_packages_of_every_image(generate: ModuleType) -> None:
    counted = next(line for line in generate.images_page().splitlines() if line.startswith("| packages |"))
    locks = [ROOT / "containers" / f"{stem}.lock" for stem in ("kdgat-cpu", "kdgat", "kdgat-cuda13")]
    numbers = [len(re.findall(r"^[\w.-]+==", path.read_text(), re.MULTILINE)) for path in locks]
    assert counted == "| packages | " + " | ".join(map(str, numbers)) + " |"


def test_search_needs_no_server(site: Path) -> None:
    """A page that lies in a folder cannot read JSON; the index is a script as well."""
    assert (site / "search" / "search_index.js").read_text(encoding="utf-8").startswith("var __index = ")
    assert "iframe-worker" in (site / "index.html").read_text(encoding="utf-8")
    assert (site / "assets" / "iframe-worker.js").is_file()


def test_the_reference_has_every_command_and_every_option(site: Path) -> None:
    words = Page((site / "reference" / "commands.html").read_text(encoding="utf-8")).words()
    for name in COMMAND_GROUPS:
        assert f"kdgat {name}" in words
        if name != "stage":  # argparse's
            group = typer.main.get_command(build_application(name, [name])).commands[name]  # type: ignore[attr-defined]
            for command in [group, *getattr(group, "commands", {}).values()]:
                options = [param.opts[0] for param in command.params if param.opts[0].startswith("--")]
                missing = [option for option in options if option not in words and option != "--help"]
                assert missing == [], (name, command.name)


def test_the_reference_has_every_key_of_the_families(site: Path) -> None:
    for name in ("can", "lap", "trees"):
        page = Page((site / "reference" / f"configuration-{name}.html").read_text(encoding="utf-8")).words()
        keys = [key.name for key in keys_of(find_family(name).config) if not key.is_section]
        assert len(keys) > 50
        assert [key for key in keys if key not in page] == []


@pytest.mark.parametrize("value", ["1e3", "0100", "yes", "on", "0o17", "1:30", "ü", 1e-4, None, True, ["no", 1]])
def test_values_of_the_reference_are_read_back_as_what_they_are(generate: ModuleType, value: object) -> None:
    from kdgat.base.configuration import read_yaml

    assert read_yaml(generate.flat({"a": {"b": value}})["a.b"]) == value


def test_what_is_not_described_stops_the_build(generate: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from mkdocs.exceptions import PluginError

    assert "| 75 |" in generate.statuses_page()
    monkeypatch.delitem(generate.VARIABLES, "KDGAT_SITES")
    with pytest.raises(PluginError, match="VARIABLES lacks \\['KDGAT_SITES'\\]"):
        generate.variables_page()
    monkeypatch.setitem(generate.STATUSES, "kdgat.cli.main:EXIT_GONE", ("", ""))
    with pytest.raises(PluginError, match=r"kdgat\.cli\.main:EXIT_GONE"):
        generate.statuses_page()
