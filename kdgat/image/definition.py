"""An Apptainer definition as data, and its text: stages of headers, arguments, files and sections."""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kdgat.image.errors import ImageError

# In the order in which they are written. `labels`, `files` and `arguments` have a form of their own.
TEXT_SECTIONS: Final = ("setup", "post", "environment", "runscript", "startscript", "test", "help")
INDENT: Final = "    "
_ARGUMENT_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE: Final = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class DefinitionError(ImageError):
    """A definition that Apptainer would refuse or misread; with the line where it was read from a file."""


@dataclass(frozen=True)
class Copy:
    """One line of %files: from the host, or from an earlier stage, to a path in this one."""

    source: str
    destination: str
    stage: str | None = None


@dataclass(frozen=True)
class Stage:
    """One stage. `sections` holds the text of the sections named in TEXT_SECTIONS, without indentation."""

    bootstrap: str
    base: str
    name: str | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    files: tuple[Copy, ...] = ()
    sections: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for text in (self.bootstrap, self.base, *([] if self.name is None else [self.name])):
            if not text or text != text.strip() or set(text) & set("\n#"):
                raise DefinitionError(f"{text!r} cannot be a header's value: write one line, no # and no blanks around")
        for name, value in self.arguments.items():
            if not _ARGUMENT_NAME.fullmatch(name):
                raise DefinitionError(f"%arguments: {name!r} is no name: use letters, digits and underscores")
            _refuse_lines(f"%arguments: {name}", value)
            if not value or "#" in value:
                raise DefinitionError(f"%arguments: {name}={value!r}: write a value without #, which begins a comment")
        for name, value in self.labels.items():
            if not name or name.split() != [name] or name.startswith(("#", "%")):
                raise DefinitionError(f"%labels: {name!r} is no name: use one word")
            _refuse_lines(f"%labels: {name}", value)
            if not value:
                raise DefinitionError(f"%labels: {name} has no value: leave the label out")
        for copy in self.files:
            for path in (copy.source, copy.destination):
                if not path or path.split() != [path] or path.startswith("%") or set(path) & set("#\"'\\"):
                    raise DefinitionError(f"%files: {path!r} cannot be written there: use no blanks and quotes")
        origins = [copy.stage for copy in self.files]
        if len(dict.fromkeys(origins)) != sum(1 for _ in itertools.groupby(origins)):
            raise DefinitionError("%files: put what comes from one stage together, for it is written as one section")
        for section, text in self.sections.items():
            if section not in TEXT_SECTIONS:
                raise DefinitionError(f"section %{section} is unknown: use {', '.join(TEXT_SECTIONS)}")
            _refuse_section_text(section, text)

    def references(self) -> set[str]:
        """Return the names of the template variables that this stage uses."""
        copied = [part for copy in self.files for part in (copy.source, copy.destination)]
        texts = [self.bootstrap, self.base, *copied, *self.sections.values(), *self.labels.values()]
        return {name for text in texts for name in _REFERENCE.findall(text)}


@dataclass(frozen=True)
class Definition:
    """A whole definition: its stages in order; the last one becomes the image."""

    stages: tuple[Stage, ...]
    comment: str = ""

    def __post_init__(self) -> None:
        if not self.stages:
            raise DefinitionError("a definition needs at least one stage")
        if any("\n" in line or line != line.strip() for line in self.comment.split("\n")):
            raise DefinitionError("comment: no blanks at the ends of its lines")
        known: set[str] = set()
        for stage in self.stages:
            if stage.name is not None and stage.name in known:
                raise DefinitionError(f"two stages are called {stage.name!r}: give each a name of its own")
            for copy in stage.files:
                if copy.stage is not None and copy.stage not in known:
                    raise DefinitionError(f"%files from {copy.stage}: no earlier stage has that name")
            known |= {stage.name} if stage.name is not None else set()
            if undeclared := sorted(stage.references() - set(stage.arguments)):
                raise DefinitionError(
                    f"{{{{ {undeclared[0]} }}}} is not declared in stage {stage.name!r}: add it to its %arguments"
                )

    def render(self) -> str:
        """Write the definition as Apptainer reads it."""
        comment = [f"# {line}".rstrip() for line in self.comment.split("\n") if self.comment]
        blocks = [*(["\n".join(comment)] if comment else []), *("\n\n".join(_blocks(stage)) for stage in self.stages)]
        return "\n\n".join(blocks) + "\n"


def _blocks(stage: Stage) -> Iterator[str]:
    headers = {"Bootstrap": stage.bootstrap, "From": stage.base, "Stage": stage.name}
    yield "\n".join(f"{key}: {value}" for key, value in headers.items() if value is not None)
    if stage.arguments:
        yield _block("%arguments", [f"{name}={value}" for name, value in stage.arguments.items()])
    for origin in dict.fromkeys(copy.stage for copy in stage.files):
        copies = [f"{copy.source} {copy.destination}" for copy in stage.files if copy.stage == origin]
        yield _block("%files" if origin is None else f"%files from {origin}", copies)
    for section in TEXT_SECTIONS:
        if section in stage.sections:
            yield _block(f"%{section}", stage.sections[section].split("\n"))
    if stage.labels:
        yield _block("%labels", [f"{name} {value}" for name, value in stage.labels.items()])


def _block(heading: str, lines: list[str]) -> str:
    return "\n".join([heading, *(f"{INDENT}{line}" if line else "" for line in lines)])


def _refuse_lines(what: str, value: str) -> None:
    if "\n" in value or value != value.strip():
        raise DefinitionError(f"{what}={value!r}: write one line without blanks at its ends")


def _refuse_section_text(section: str, text: str) -> None:
    lines = text.split("\n")
    if not lines[0].strip() or not lines[-1].strip():
        raise DefinitionError(f"%{section} begins or ends with an empty line: leave it out")
    if not any(line and not line[0].isspace() for line in lines):
        raise DefinitionError(f"%{section} is indented as a whole: leave the indentation to the text")
    for line in lines:
        # Apptainer takes an indented % for a heading, too.
        if line.lstrip().startswith("%"):
            raise DefinitionError(f"%{section}: {line!r} would begin a section: a line cannot start with %")
        if line != line.rstrip():
            raise DefinitionError(f"%{section}: {line!r} ends with blanks: leave them out")
