"""Collections of instances: so many of each family and size, from one seed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kdgat.base import UserError
from kdgat.lap.instances.distributions import MAX_SIZE, Instance, complete_parameters, find_distribution, generate
from kdgat.lap.instances.draws import derived_seed


@dataclass(frozen=True)
class Collection:
    """What to generate: `count` instances of each family at each size.

    The instance at place i has a seed made of `seed` and i, so that collections of different seeds share none (but for
    families and sizes with few different instances) and a larger `count` begins with the smaller one.
    """

    families: Sequence[str]
    sizes: Sequence[int]
    count: int
    seed: int = 0
    parameters: dict[str, Any] | None = None
    tag: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot be generated, before anything is."""
        if not self.families or not self.sizes:
            raise UserError("nothing to generate: name at least one family and one size")
        for kind, values in (("family", self.families), ("size", self.sizes)):
            twice = [value for value in values if list(values).count(value) > 1]
            if twice:
                raise UserError(f"{kind} {twice[0]!r} is given twice; keep one and raise the count")
        for family in self.families:
            find_distribution(family)
        for size in self.sizes:
            if size < 1:
                raise UserError(f"size {size}: a matrix has at least one row; give a whole number of 1 or more")
            if size > MAX_SIZE:
                raise UserError(f"size {size}: its costs take {size * size * 8 / 2**30:.0f} GiB; give up to {MAX_SIZE}")
        if self.count < 1:
            raise UserError(f"count {self.count}: give a whole number of 1 or more")
        if self.seed < 0:
            raise UserError(f"seed {self.seed}: give a whole number of 0 or more")
        for name in self.parameters or {}:
            if not any(name in complete_parameters(family, {}) for family in self.families):
                raise UserError(f"parameter {name!r}: none of the families {', '.join(self.families)} has it")
        for family in self.families:
            complete_parameters(family, self.parameters_of(family))

    def __len__(self) -> int:
        """Return the number of instances."""
        return len(self.families) * len(self.sizes) * self.count

    def parameters_of(self, family: str) -> dict[str, Any]:
        """Return those of the parameters that a family has."""
        known = complete_parameters(family, {})
        return {name: value for name, value in (self.parameters or {}).items() if name in known}

    def __iter__(self) -> Iterator[Instance]:
        """Generate the instances, smallest first, the families in turn."""
        for size in sorted(self.sizes):
            for place in range(self.count):
                for family in self.families:
                    yield self._make(family, size, place)

    def _make(self, family: str, size: int, place: int) -> Instance:
        made = generate(family, size, derived_seed(self.seed, place), **self.parameters_of(family))
        return replace(made, tag=self.tag)


def read_parameters(texts: Sequence[str]) -> dict[str, Any]:
    """Read `name=number` texts. UserError names one that is none."""
    parameters = {}
    for text in texts:
        name, separator, value = text.partition("=")
        try:
            parameters[name.strip()] = json.loads(value)
        except json.JSONDecodeError:
            separator = ""
        if not separator or isinstance(parameters[name.strip()], bool | str | list | dict | None):
            raise UserError(f"parameter {text!r} has no name=number form: write for instance density=0.1")
    return parameters
