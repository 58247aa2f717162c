"""Read Apptainer's definition language strictly: what Apptainer refuses late, or swallows, is refused with its line.

Known to Apptainer 1.4 and refused all the same: a section given twice (the texts are joined), two stages of one name,
`%files from` without a name (copies nothing), capital letters in a section's name, words after it other than
`from STAGE`, and the sections that no image of this project has (%pre, %app...).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NoReturn

from kdgat.image.definition import TEXT_SECTIONS, Copy, Definition, DefinitionError, Stage

_HEADERS: Final = ("Bootstrap", "From", "Stage")
_PAIRED_SECTIONS: Final = ("arguments", "files", "labels")
_AGENTS: Final = ("docker", "localimage", "library", "oras", "oci", "oci-archive", "docker-archive", "scratch")
_SECTION: Final = re.compile(r"%(\S*)(?:\s+(.*\S))?\s*$")
_HEADER: Final = re.compile(r"([A-Za-z]+):\s*(.*?)\s*$")
_REFERENCE: Final = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True)
class _Line:
    number: int
    text: str


@dataclass
class _Section:
    name: str
    words: str
    number: int
    lines: list[_Line] = field(default_factory=list)


@dataclass
class _Draft:
    """A stage while it is read."""

    headers: dict[str, _Line]
    sections: list[_Section] = field(default_factory=list)


def read_definition(text: str) -> Definition:
    """Read a definition with all its stages.

    Raises:
        DefinitionError: with the number of the line, what is wrong in it, and the fix.
    """
    lines = [_Line(number, line.rstrip()) for number, line in enumerate(text.splitlines(), start=1)]
    comment, drafts = _split(lines)
    known: dict[str, int] = {}
    stages = []
    for draft in drafts:
        stage = _read_stage(draft, known)
        if stage.name is not None:
            known[stage.name] = draft.headers["Stage"].number
        stages.append(stage)
    return Definition(tuple(stages), comment="\n".join(comment))


def _split(lines: list[_Line]) -> tuple[list[str], list[_Draft]]:
    """Cut the text into stages and their sections: `Bootstrap:` at the start of a line begins a stage."""
    comment: list[str] = []
    drafts: list[_Draft] = []
    section: _Section | None = None
    for line in lines:
        if line.text.lstrip().startswith("%"):
            if not drafts:
                _refuse(line, f"{line.text.strip()} before any header: begin with Bootstrap: and From:")
            section = _begin_section(line, drafts[-1])
            continue
        header = _HEADER.fullmatch(line.text)
        if header and header[1].lower() == "bootstrap":
            drafts.append(_Draft({}))
            section = None
        if section is not None:
            section.lines.append(line)
        elif not line.text.strip():
            continue
        elif line.text.lstrip().startswith("#"):
            if not drafts:
                comment.append(line.text.lstrip()[1:].removeprefix(" "))
        elif header is None:
            _refuse(line, f"{line.text.strip()!r} is neither a header nor in a section: write Key: value")
        else:
            _read_header(_Line(line.number, header[2]), header[1], drafts)
    if not drafts:
        _refuse(_Line(1, ""), "nothing is built here: begin with Bootstrap: and From:")
    return comment, drafts


def _begin_section(line: _Line, draft: _Draft) -> _Section:
    found = _SECTION.fullmatch(line.text.lstrip())
    name, words = (found[1], found[2] or "") if found else ("", "")
    if line.text.startswith((" ", "\t")):
        _refuse(line, f"{line.text.strip()!r} would begin a section: a line of text cannot start with %")
    if name not in (*TEXT_SECTIONS, *_PAIRED_SECTIONS):
        _refuse(line, f"section %{name} is unknown: use {', '.join((*_PAIRED_SECTIONS, *TEXT_SECTIONS))}")
    section = _Section(name, words, line.number)
    origin = _origin(section) if name == "files" else None
    if name != "files" and words:
        _refuse(line, f"%{name} {words}: only %files takes words, as %files from STAGE")
    for other in draft.sections:
        if other.name == name and (name != "files" or _origin(other) == origin):
            _refuse(line, f"{line.text} is there already, in line {other.number}: join the two")
    draft.sections.append(section)
    return section


def _origin(section: _Section) -> str | None:
    """Return the stage that `%files from STAGE` names; None for files of the host."""
    words = section.words.split()
    if not words:
        return None
    if len(words) != 2 or words[0] != "from":
        _refuse(_Line(section.number, ""), f"%files {section.words}: write %files, or %files from STAGE")
    return words[1]


def _read_header(line: _Line, key: str, drafts: list[_Draft]) -> None:
    name = next((known for known in _HEADERS if known.lower() == key.lower()), None)
    if name is None:
        _refuse(line, f"header {key} is unknown: use {', '.join(_HEADERS)}")
    if not drafts:
        _refuse(line, f"{name}: comes before Bootstrap:, which must be the first header")
    if not line.text or "#" in line.text:
        _refuse(line, f"{name}: {line.text!r} cannot be its value: write one without #")
    headers = drafts[-1].headers
    if name in headers:
        _refuse(line, f"{name}: is there already, in line {headers[name].number}: keep one")
    headers[name] = line


def _read_stage(draft: _Draft, known: dict[str, int]) -> Stage:
    headers = draft.headers
    bootstrap = headers["Bootstrap"]
    if "From" not in headers:
        _refuse(bootstrap, "this stage has no From: header: name the base below Bootstrap:")
    if "{{" not in bootstrap.text and bootstrap.text not in _AGENTS:
        _refuse(bootstrap, f"Bootstrap: {bootstrap.text} is unknown: use one of {', '.join(_AGENTS)}")
    name = headers.get("Stage")
    if name is not None and name.text in known:
        _refuse(name, f"stage {name.text} is there already, in line {known[name.text]}: give each a name of its own")
    arguments = dict(_read_pairs(draft, "arguments", "=", "NAME=value"))
    labels = dict(_read_pairs(draft, "labels", None, "name value"))
    for line in (*headers.values(), *(line for section in draft.sections for line in section.lines)):
        for variable in _REFERENCE.findall(line.text):
            if variable not in arguments:
                _refuse(line, f"{{{{ {variable} }}}} is not declared: add {variable}=... to this stage's %arguments")
    files: list[Copy] = []
    for section in draft.sections:
        if section.name == "files":
            files += _read_copies(section, known)
    try:
        return Stage(
            bootstrap=bootstrap.text,
            base=headers["From"].text,
            name=None if name is None else name.text,
            arguments=arguments,
            files=tuple(files),
            sections={section.name: _text(section) for section in draft.sections if section.name in TEXT_SECTIONS},
            labels=labels,
        )
    except DefinitionError as error:
        _refuse(bootstrap, f"in the stage that begins here: {error}")


def _read_pairs(draft: _Draft, name: str, separator: str | None, form: str) -> Iterator[tuple[str, str]]:
    seen: dict[str, int] = {}
    for section in draft.sections:
        for line in _content(section) if section.name == name else ():
            parts = [part.strip() for part in line.text.strip().split(separator, 1)]
            if len(parts) != 2 or not all(parts):
                _refuse(line, f"%{name}: {line.text.strip()!r} is incomplete: write {form}")
            if separator and "#" in parts[1]:
                _refuse(line, f"%{name}: {line.text.strip()!r}: what follows # is no part of the value: leave it out")
            if separator and not re.fullmatch(r"[A-Za-z_]\w*", parts[0]):
                _refuse(line, f"%{name}: {parts[0]!r} is no name: use letters, digits and underscores")
            if parts[0] in seen:
                _refuse(line, f"%{name}: {parts[0]} is there already, in line {seen[parts[0]]}: keep one")
            seen[parts[0]] = line.number
            yield parts[0], parts[1]


def _read_copies(section: _Section, known: dict[str, int]) -> Iterator[Copy]:
    origin = _origin(section)
    if origin is not None and origin not in known:
        before = ", ".join(known) or "none"
        _refuse(_Line(section.number, ""), f"%files from {origin}: no earlier stage has that name; there are: {before}")
    for line in _content(section):
        words = line.text.split()
        if len(words) != 2:
            _refuse(line, f"%files: {line.text.strip()!r}: write source and destination, without blanks in either")
        if set(line.text) & set("#\"'\\"):
            _refuse(line, f"%files: {line.text.strip()!r}: quotes, backslashes and # are not understood here")
        yield Copy(words[0], words[1], stage=origin)


def _content(section: _Section) -> Iterator[_Line]:
    for line in section.lines:
        if line.text.strip() and not line.text.lstrip().startswith("#"):
            yield line


def _text(section: _Section) -> str:
    """Return a section's text without the indentation that its lines share and the empty lines around it."""
    texts = [line.text for line in section.lines]
    while texts and not texts[-1]:
        texts.pop()
    while texts and not texts[0]:
        texts.pop(0)
    if not texts:
        _refuse(_Line(section.number, ""), f"%{section.name} is empty: leave it out")
    shared = min(len(text) - len(text.lstrip()) for text in texts if text)
    return "\n".join(text[shared:] for text in texts)


def _refuse(line: _Line, reason: str) -> NoReturn:
    raise DefinitionError(f"line {line.number}: {reason}")
