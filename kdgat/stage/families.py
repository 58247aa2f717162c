"""Where the code of a family lies: a package below `kdgat`, or one that another distribution has registered.

A family is one folder. Its name is all that specs, runs and commands keep of it; this is the only place that turns the
name into a package. A distribution of its own brings a family along by the entry point group `kdgat.families`:

    [project.entry-points."kdgat.families"]
    toy = "toy_family"
"""

from importlib import metadata
from typing import Final

from kdgat.stage.errors import StageInputError

BUILT_IN: Final = {"can": "kdgat.can", "lap": "kdgat.lap", "trees": "kdgat.trees"}
OWN: Final = ("kdgat", "flows")
ENTRY_POINTS: Final = "kdgat.families"


def family_names() -> list[str]:
    """List the families that are there, those of this distribution first."""
    others = sorted({point.name for point in metadata.entry_points(group=ENTRY_POINTS)} - set(BUILT_IN))
    return [*BUILT_IN, *others]


def is_own(module: str) -> bool:
    """Tell whether a module is ours or a registered family's: its ValueErrors are mistakes of the user."""
    package = module.partition(".")[0]
    # Entry points last: to list them is to read what is said of every package that is installed.
    return package in OWN or package in own_packages()


def is_user_error(error: BaseException) -> bool:
    """Return whether the text is all a user needs: our errors name key, value and fix; a stray ValueError is a bug."""
    if isinstance(error, BrokenPipeError):
        return False
    if isinstance(error, OSError):
        return error.filename is not None
    return isinstance(error, ValueError) and is_own(type(error).__module__)


def own_packages() -> set[str]:
    """Name the top-level packages of this distribution and of all families."""
    points = metadata.entry_points(group=ENTRY_POINTS)
    return {*OWN, *(point.value.partition(".")[0] for point in points)}


def family_package(name: str) -> str:
    """Return the package of a family; StageInputError names those that there are."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    for point in metadata.entry_points(group=ENTRY_POINTS, name=name):
        return point.value
    raise StageInputError(f"family {name!r} is unknown: choose one of {', '.join(family_names())}")
