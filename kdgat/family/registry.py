"""Find a family by its name; `kdgat.stage.families` says which there are, and how another one is registered."""

import importlib

from kdgat.family.protocol import Family
from kdgat.stage.families import family_package


def find_family(name: str) -> Family:
    """Import the family of this name and return it; StageInputError names those that there are.

    >>> find_family("lap").name
    'lap'
    """
    family: Family = importlib.import_module(f"{family_package(name)}.family").FAMILY
    return family
