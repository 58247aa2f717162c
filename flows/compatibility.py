"""Packages that Prefect accepts, and that break it: its own bounds are wider than what it works with."""

from collections.abc import Collection
from typing import Final, NamedTuple

from packaging.specifiers import SpecifierSet

from kdgat.base import UserError
from kdgat.stage import package_version

PREFECT: Final = "3.8.8"  # the one that was tried; 3.9.1 works with SQLAlchemy 2.1, and caps fastapi itself


class Conflict(NamedTuple):
    """An installed version that breaks Prefect, in one sentence, and what is to be installed instead."""

    text: str
    fix: str


# What works, and what happens with later ones.
KNOWN: Final = {
    "fastapi": ("<0.151", "its server refuses its client's requests, and from 0.155 on ends when it starts"),
    "sqlalchemy": ("<2.1", "its scheduler fails each minute, and deployments start nothing by themselves"),
}
OF_EVERY_SERVER: Final = ("fastapi",)


def find_conflicts(names: Collection[str] = tuple(KNOWN)) -> list[Conflict]:
    """Compare the installed versions of these packages with those that the installed Prefect works with."""
    if package_version("prefect") != PREFECT:
        return []
    found = []
    for name in names:
        works, effect = KNOWN[name]
        version = package_version(name)
        if version is not None and not SpecifierSet(works).contains(version, prereleases=True):
            fix = f"pip install '{name}{works}', or kdgat again with --constraint constraints.txt"
            found.append(Conflict(f"{name} {version} breaks Prefect {PREFECT}: {effect}", fix))
    return found


def require_compatible(names: Collection[str] = tuple(KNOWN)) -> None:
    """Raise UserError if one of these packages breaks the installed Prefect."""
    conflicts = find_conflicts(names)
    if conflicts:
        raise UserError("; ".join(f"{one.text}: {one.fix}" for one in conflicts))
