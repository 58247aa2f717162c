"""Where the code of a family lies: a package below `kdgat`, or one that another distribution has registered.

A family is one folder. Its name is all that specs, runs and commands keep of it; this is the only place that turns the
name into a package. A distribution of its own brings a family along by the entry point group `kdgat.families`:

    [project.entry-points."kdgat.families"]
    toy = "toy_family"
"""

from importlib import metadata
from typing import Final

from kdgat.base import UserError
from kdgat.base.text import suggest
from kdgat.stage.errors import StageInputError

BUILT_IN: Final = {"can": "kdgat.can", "lap": "kdgat.lap", "trees": "kdgat.trees", "experiment": "kdgat.experiment"}
ENTRY_POINTS: Final = "kdgat.families"
EXPERIMENT: Final = "experiment"  # the family of models that a file of one's own declares
SOURCE_SUFFIX: Final = ".py"


def family_names() -> list[str]:
    """List the families that are there, those of this distribution first."""
    others = sorted({point.name for point in metadata.entry_points(group=ENTRY_POINTS)} - set(BUILT_IN))
    return [*BUILT_IN, *others]


def is_source(word: str) -> bool:
    """Return whether a word names an experiment: a Python file, or `package.module:name`.

    >>> is_source("net.py"), is_source("nets.molecules:experiment"), is_source("can")
    (True, True, False)
    """
    module, colon, name = word.partition(":")
    return word.endswith(SOURCE_SUFFIX) or (
        bool(colon) and name.isidentifier() and all(map(str.isidentifier, module.split(".")))
    )


def is_mistake(error: BaseException) -> bool:
    """Return whether an error names what was given, and the fix: a UserError; a bare ValueError is a bug somewhere.

    Until the next release also a ValueError of a class of its own that a registered family brings: such a family should
    derive it from UserError. Entry points are read for that alone.
    """
    if isinstance(error, UserError):
        return True
    # Entry points last: to list them is to read the metadata of every package that is installed.
    return isinstance(error, ValueError) and type(error).__module__.partition(".")[0] in registered_packages()


def is_user_error(error: BaseException) -> bool:
    """Return whether the text is all a user needs: of a mistake, or of a file that the system refused."""
    if isinstance(error, BrokenPipeError):
        return False
    if isinstance(error, OSError):
        return error.filename is not None
    return is_mistake(error)


def registered_packages() -> set[str]:
    """Name the top-level packages of families that other distributions have registered."""
    return {point.value.partition(".")[0] for point in metadata.entry_points(group=ENTRY_POINTS)}


def family_package(name: str) -> str:
    """Return the package of a family; StageInputError names those that there are."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    for point in metadata.entry_points(group=ENTRY_POINTS, name=name):
        return point.value
    names = family_names()
    near = suggest(name, names, "")
    raise StageInputError(f"family {name!r} is unknown: choose one of {', '.join(names)}{near and f'; {near}'}")
