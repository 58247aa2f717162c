"""One HTML file that opens from disk without a network: sections of text, tables and figures in a family's frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import jinja2
import yaml
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from kdgat.report.style import Key, Picture
from kdgat.report.tables import Table

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


def provenance(
    created: str,
    preset: str | None,
    revision: str,
    seeds: Iterable[int],
    stages: Table | None,
    config: Mapping[str, Any] | None,
) -> Section:
    """Return the section that says where the numbers of the page come from."""
    section = Section("provenance", "Provenance")
    section.paragraphs.append(
        f"Evaluated {created}, preset {preset or 'not stated'}, revision {revision or 'unknown'},"
        f" seeds {', '.join(map(str, seeds))}. results.json beside this page holds every number of the evaluation."
    )
    if stages is not None:
        section.tables.append(stages)
    if config is not None:
        section.folded_text["Configuration of the run"] = as_yaml(config)
    return section


def render_document(template: str, sections: Sequence[Section], missing: Sequence[str], **content: Any) -> str:
    """Return the page as HTML.

    Args:
        template: a family's frame, which extends `page.html`.
        sections: what follows the summary.
        missing: what the page lacks, in words.
        **content: what the frame itself asks for.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kdgat.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["breakable"] = breakable
    environment.filters["legend"] = legend
    pictures = {id(picture): number for number, picture in enumerate(_pictures(sections))}
    return environment.get_template(template).render(
        sections=sections,
        missing=missing,
        number_of=lambda picture: pictures[id(picture)],
        figure_json=lambda picture: script_safe(picture.figure.to_json()),
        plotly=get_plotlyjs().replace("</script", "<\\/script"),
        stylesheet=_read(STYLESHEET),
        script=_read(SCRIPT),
        **content,
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
    return yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True, width=100)


def _read(name: str) -> str:
    return (resources.files("kdgat.report") / name).read_text(encoding="utf-8")


def _pictures(sections: Iterable[Section]) -> Iterable[Picture]:
    for section in sections:
        for group in section.pictures.values():
            yield from group
