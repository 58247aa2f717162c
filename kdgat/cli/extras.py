"""Which of the package's extras brings a module that is not installed."""

import importlib.util
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

BASE: Final = ""  # in place of an extra: what every installation has
NOT_FOR_USERS: Final = ("all", "dev", "docs")  # sums of the others, and what only developers need
# Where a package is not called as what it is imported by.
DISTRIBUTIONS: Final = {
    "PIL": "pillow",
    "can": "python-can",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "PyYAML",
}

Extras = Mapping[str, Sequence[Requirement]]


def declared_extras() -> dict[str, list[Requirement]]:
    """Return what the installed kdgat asks for, for each extra that is of use to who runs it; BASE comes first."""
    extras: dict[str, list[Requirement]] = {BASE: []}
    for text in metadata.requires("kdgat") or ():
        extra = _extra_of(text)
        if extra not in NOT_FOR_USERS:
            extras.setdefault(extra, []).append(Requirement(text))
    return extras


def find_extra(module: str, extras: Extras) -> str | None:
    """Return the first extra that has the distribution of a module, None if there is none."""
    top = module.partition(".")[0]
    name = canonicalize_name(DISTRIBUTIONS.get(top, top))
    for extra, requirements in extras.items():
        if name in [canonicalize_name(one.name) for one in requirements]:
            return extra
    return None


def describe_missing(module: str) -> str | None:
    """Return the sentence for a module that is not installed; None if kdgat asks for it nowhere, or it is there."""
    top, extra = module.partition(".")[0], find_extra(module, declared_extras())
    if extra is None or importlib.util.find_spec(top) is not None:
        return None
    wanted = f"'kdgat[{extra}]'" if extra else "kdgat"
    return f"{top} is not installed, and this command needs it: pip install {wanted}"


def _extra_of(requirement: str) -> str:
    """Return the extra that a line of the metadata belongs to; BASE for what all of them need."""
    marker = requirement.partition(";")[2]
    return marker.partition("extra ==")[2].strip(" '\"") if "extra ==" in marker else BASE
