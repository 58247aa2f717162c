"""One HTML file that opens from disk without a network: sections of text, tables and figures in a family's frame."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Final

import jinja2
from markupsafe import Markup, escape

from kdgat.base.configuration import write_yaml
from kdgat.report.content import RunContent, StageContent
from kdgat.report.style import Key, Picture
from kdgat.run import Table

# The part of plotly.js that draws lines, markers and bars, as npm's plotly.js-basic-dist-min has it (MIT licence): a
# quarter of what the Python package embeds.
PLOTLY: Final = "plotly-basic.min.js.gz"


@dataclass
class Section:
    """A heading with its content, in the order text, tables, pictures (by group), folded tables and text.

    Who opens the page sees the heading alone, unless the section `is_open`.
    """

    identifier: str
    title: str
    paragraphs: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    pictures: dict[str, list[Picture]] = field(default_factory=dict)  # by heading, "" for none
    folded: dict[str, list[Table]] = field(default_factory=dict)
    folded_text: dict[str, str] = field(default_factory=dict)
    is_open: bool = False


def drawn(pictures: Mapping[str, Sequence[Picture | None]]) -> dict[str, list[Picture]]:
    """Return the pictures of a section, without those of which there was nothing to draw."""
    return {heading: [one for one in found if one is not None] for heading, found in pictures.items()}


@dataclass(frozen=True)
class Document:
    """The report of a run: its first screen, and sections that go into detail."""

    title: str
    sections: Sequence[Section]
    missing: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)  # on the first screen, below the answer
    origin: str = ""  # when it was evaluated, of which preset, code and seeds
    conclusions: Sequence[str] = ()
    answer: Sequence[Table] = ()  # what a person asks first
    commands: Mapping[str, str] = field(default_factory=dict)  # what to do next -> the command
    notice: str = ""  # stands above everything else


def provenance(content: RunContent[Any]) -> Section:
    """Return the section that says where the numbers of the page come from."""
    stages, index = stage_table(content.stages), content.index
    return Section(
        "provenance",
        "Where the numbers come from",
        ["results.json beside this page holds every number of the evaluation."],
        [] if stages is None else [stages],
        folded_text={} if index is None else {"Configuration of the run": as_yaml(index.config)},
    )


def stage_table(stages: list[StageContent]) -> Table | None:
    """State, attempts, machine and code of every stage."""
    if not stages:
        return None
    rows = []
    for stage in stages:
        last = stage.attempts[-1] if stage.attempts else {}
        git = last.get("git") or {}
        revision = f"{git.get('revision', '')[:10]}{' with changes' if git.get('dirty') else ''}" if git else "-"
        torch = (last.get("packages") or {}).get("torch") or "-"
        cells = [stage.record.name, stage.record.state, str(max(len(stage.attempts), stage.record.attempts))]
        cells += [last.get("started_at", "-"), last.get("hostname", "-"), revision, torch, stage.record.identity or "-"]
        rows.append(cells)
    headings = ("Stage", "State", "Attempts", "Last started", "Machine", "Revision", "torch", "Identity")
    return Table.of(headings, rows, "Stages of the run.", text_columns=(0, 1, 3, 4, 5, 6, 7))


def render_document(document: Document) -> str:
    """Return the page as HTML; what draws its figures travels compressed, as are they."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kdgat.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["breakable"] = breakable
    environment.filters["legend"] = legend
    environment.filters["themed"] = lambda colour: f"var(--on-dark-{colour.lower().removeprefix('#')}, {colour})"
    pictures = [one for section in document.sections for group in section.pictures.values() for one in group]
    numbers = {id(picture): number for number, picture in enumerate(pictures)}
    figures = f"[{','.join(picture.figure.to_json() for picture in pictures)}]"
    return environment.get_template("page.html").render(
        document=document,
        number_of=lambda picture: numbers[id(picture)],
        figures=_base64(gzip.compress(figures.encode(), mtime=0)),
        plotly=_base64(_read(PLOTLY)) if pictures else "",
        stylesheet=_read("page.css").decode(),
        script=_read("page.js").decode(),
    )


def legend(pictures: list[Picture]) -> list[Key]:
    """Return the keys of neighbouring figures, each once."""
    return list({key.label: key for picture in pictures for key in picture.keys}.values())


def breakable(text: str) -> Markup:
    """Let long names break after underscores and slashes, so that tables fit the page; a number keeps its percent."""
    return Markup(str(escape(text)).replace("_", "_<wbr>").replace("/", "/<wbr>").replace(" %", "\u00a0%"))


def as_yaml(value: Mapping[str, Any]) -> str:
    """Write plain data as people read it."""
    return write_yaml(dict(value), sort_keys=False, width=100)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _read(name: str) -> bytes:
    return (resources.files("kdgat.report") / name).read_bytes()
