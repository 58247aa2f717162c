"""One HTML file that opens from disk without a network: sections of text, tables and figures in a family's frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from kdgat.base.configuration import write_yaml
from kdgat.report.content import RunContent, StageContent
from kdgat.report.style import Key, Picture
from kdgat.run import Table
from kdgat.run.table import Cell

STYLESHEET, SCRIPT = "page.css", "page.js"


@dataclass
class Section:
    """A heading with its content, in the order text, tables, pictures (by group), folded tables and text."""

    identifier: str
    title: str
    paragraphs: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    pictures: dict[str, list[Picture]] = field(default_factory=dict)  # by heading, "" for none
    folded: dict[str, list[Table]] = field(default_factory=dict)
    folded_text: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Document:
    """The report of a family: sections, what is missing, and what its frame asks for.

    `template` extends `page.html` and lies in `package`; the default one shows title, facts and sections.
    """

    title: str
    sections: Sequence[Section]
    missing: Sequence[str] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    template: str = "run.html"
    package: str = "kdgat.report"
    content: Mapping[str, Any] = field(default_factory=dict)  # names that a template of the family's own asks for
    notice: str = ""  # stands above everything else


def provenance(content: RunContent[Any]) -> Section:
    """Return the section that says where the numbers of the page come from."""
    results, section = content.results, Section("provenance", "Provenance")
    section.paragraphs.append(
        f"Evaluated {results.created}, preset {results.preset or 'not stated'}, revision"
        f" {content.revision or 'unknown'}, seeds {', '.join(map(str, results.seeds))}. results.json beside this page"
        " holds every number of the evaluation."
    )
    stages = stage_table(content.stages)
    if stages is not None:
        section.tables.append(stages)
    if content.index is not None:
        section.folded_text["Configuration of the run"] = as_yaml(content.index.config)
    return section


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
        cells = [
            Cell(stage.record.name),
            Cell(stage.record.state),
            Cell(str(max(len(stage.attempts), stage.record.attempts))),
        ]
        cells += [Cell(last.get("started_at", "-")), Cell(last.get("hostname", "-")), Cell(revision), Cell(torch)]
        cells += [Cell(stage.record.identity or "-")]
        rows.append(cells)
    headings = ("Stage", "State", "Attempts", "Last started", "Machine", "Revision", "torch", "Identity")
    columns = (0, 1, 3, 4, 5, 6, 7)
    return Table([Cell(heading) for heading in headings], rows, "Stages of the run.", text_columns=columns)


def render_document(document: Document) -> str:
    """Return the page as HTML."""
    loaders = [jinja2.PackageLoader(package, ".") for package in dict.fromkeys((document.package, "kdgat.report"))]
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["breakable"] = breakable
    environment.filters["legend"] = legend
    pictures = {id(picture): number for number, picture in enumerate(_pictures(document.sections))}
    return environment.get_template(document.template).render(
        document=document,
        sections=document.sections,
        missing=document.missing,
        number_of=lambda picture: pictures[id(picture)],
        figure_json=lambda picture: script_safe(picture.figure.to_json()),
        plotly=get_plotlyjs().replace("</script", "<\\/script"),
        stylesheet=_read(STYLESHEET),
        script=_read(SCRIPT),
        **document.content,
    )


def legend(pictures: list[Picture]) -> list[Key]:
    """Return the keys of neighbouring figures, each once."""
    return list({key.label: key for picture in pictures for key in picture.keys}.values())


def breakable(text: str) -> Markup:
    """Let long names break after underscores and slashes, so that tables fit the page."""
    return Markup(str(escape(text)).replace("_", "_<wbr>").replace("/", "/<wbr>"))


def script_safe(text: str) -> str:
    """Escape JSON so that no name in it can end the script element."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def as_yaml(value: Mapping[str, Any]) -> str:
    """Write plain data as people read it."""
    return write_yaml(dict(value), sort_keys=False, width=100)


def _read(name: str) -> str:
    return (resources.files("kdgat.report") / name).read_text(encoding="utf-8")


def _pictures(sections: Iterable[Section]) -> Iterable[Picture]:
    for section in sections:
        for group in section.pictures.values():
            yield from group
