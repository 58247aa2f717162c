"""Which configurations a sweep tries: every combination of listed values, and values drawn at random.

A draw depends on the seed, the number of its trial and its key alone: more trials, or another key, leave those that
were there as they are, so that what has finished is not trained again.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import Field

from kdgat.base import Config, UserError, unknown_key_text, validate_config
from kdgat.base.configuration import describe_yaml_error, read_yaml, write_yaml

DIGITS: Final = 4  # of a number that is drawn: a configuration is read by people
RANGES: Final = ("uniform", "log", "int")
CHOICE: Final = "choice"
FORMS: Final = "uniform:LOW:HIGH, log:LOW:HIGH, int:LOW:HIGH, or choice:A,B,C"
MOST_TRIALS: Final = 10_000


@dataclass(frozen=True)
class Draw:
    """How a value is drawn: evenly, evenly in its logarithm, as a whole number (both ends included), or from a list.

    >>> Draw.parse("training.weight_decay", "log:1e-6:1e-2").ends
    ('1e-06', '0.01')
    """

    kind: str
    low: float = 0.0
    high: float = 0.0
    values: tuple[str, ...] = ()

    @classmethod
    def parse(cls, key: str, text: str) -> Draw:
        """Read one of `FORMS`; UserError names the key."""
        kind, _, rest = text.partition(":")
        if kind == CHOICE:
            return cls(kind, values=tuple(split_values(key, rest)))
        if kind not in RANGES:
            raise UserError(f"--random {key}={text}: {unknown_key_text(kind, [*RANGES, CHOICE])}; write {FORMS}")
        try:
            low, high = (float(part) for part in rest.split(":"))
        except ValueError:
            raise UserError(f"--random {key}={text}: expected two numbers, {kind}:LOW:HIGH") from None
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise UserError(f"--random {key}={text}: LOW must be a number below HIGH")
        if kind == "log" and low <= 0:
            raise UserError(f"--random {key}={text}: a logarithmic range must lie above 0")
        if kind == "int" and not (low.is_integer() and high.is_integer()):
            raise UserError(f"--random {key}={text}: int needs whole numbers as LOW and HIGH")
        return cls(kind, low, high)

    @property
    def ends(self) -> tuple[str, ...]:
        """Return what must be valid for every draw to be: both ends of a range, or all values."""
        return self.values if self.kind == CHOICE else (self._write(self.low), self._write(self.high))

    def draw(self, generator: random.Random) -> str:
        """Return a value, as it is written in a configuration."""
        if self.kind == CHOICE:
            return self.values[generator.randrange(len(self.values))]
        if self.kind == "int":
            return str(generator.randint(int(self.low), int(self.high)))
        if self.kind == "log":
            return self._write(math.exp(generator.uniform(math.log(self.low), math.log(self.high))))
        return self._write(generator.uniform(self.low, self.high))

    def _write(self, value: float) -> str:
        return str(int(value)) if self.kind == "int" else f"{min(max(value, self.low), self.high):.{DIGITS}g}"


class SpaceFile(Config):
    """What a YAML file says of a sweep; options of the command line are added to it and win."""

    grid: dict[str, list[Any]] = Field(default={})
    random: dict[str, str] = Field(default={})
    trials: int | None = Field(None, ge=1)
    seed: int | None = Field(None, ge=0)


@dataclass(frozen=True)
class Space:
    """Listed values and ranges by dotted key, the number of trials, and the seed of what is drawn."""

    grid: Mapping[str, Sequence[str]] = field(default_factory=dict)
    random: Mapping[str, Draw] = field(default_factory=dict)
    trials: int | None = None
    seed: int = 0

    @classmethod
    def of(
        cls,
        grid: Sequence[str] = (),
        draws: Sequence[str] = (),
        trials: int | None = None,
        seed: int | None = None,
        file: Path | None = None,
    ) -> Space:
        """Read what a command line, and a file, say.

        Args:
            grid: `KEY=A,B,C` each.
            draws: `KEY=FORM` each, with one of `FORMS`.
            trials: how many; needed with `draws`.
            seed: of what is drawn.
            file: YAML with the keys of `SpaceFile`.

        Raises:
            UserError, ConfigurationError: naming option or key, value and fix.
        """
        given = SpaceFile() if file is None else _read(file)
        listed = {key: [_written(value) for value in values] for key, values in given.grid.items()}
        drawn = {key: Draw.parse(key, text) for key, text in given.random.items()}
        for text in grid:
            key, values = _key_and_value("--grid", text, "training.learning_rate=1e-3,3e-4")
            listed[key] = split_values(key, values)
        for text in draws:
            key, form = _key_and_value("--random", text, "training.weight_decay=log:1e-6:1e-2")
            drawn[key] = Draw.parse(key, form)
        return cls(listed, drawn, trials or given.trials, seed if seed is not None else given.seed or 0).checked()

    def checked(self) -> Space:
        """Return this, if it describes at least one trial; UserError otherwise."""
        if not self.grid and not self.random:
            raise UserError("nothing to try: give --grid KEY=A,B,C or --random KEY=FORM, or a file by --space")
        for key in self.grid:
            if key in self.random:
                raise UserError(f"{key} is listed and drawn: give it by --grid or by --random")
            if not self.grid[key]:
                raise UserError(f"--grid {key}=: no value: write {key}=A,B,C")
        if self.random and self.trials is None:
            raise UserError("--random needs --trials N: how many trials there are in all")
        if self.trials is not None and not self.random:
            raise UserError(f"--trials {self.trials}: only --random leaves a number to choose; leave it out")
        if self.trials is not None and self.trials < self.num_combinations:
            raise UserError(
                f"--trials {self.trials}: --grid alone has {self.num_combinations} combinations: give at least as many"
            )
        if (self.trials or self.num_combinations) > MOST_TRIALS:
            raise UserError(f"{self.trials or self.num_combinations:,} trials: list fewer values, or draw some")
        return self

    @property
    def keys(self) -> list[str]:
        """Name what is tried, the listed ones first."""
        return [*self.grid, *self.random]

    @property
    def num_combinations(self) -> int:
        """Count the combinations of listed values."""
        return math.prod(len(values) for values in self.grid.values())

    def assignments(self) -> list[dict[str, str]]:
        """Return what each trial sets, by key; combinations take turns until there are as many trials as wanted."""
        combinations = [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]
        found = []
        for number in range(self.trials or len(combinations)):
            drawn = {key: draw.draw(random.Random(f"{self.seed}/{number}/{key}")) for key, draw in self.random.items()}
            found.append({**combinations[number % len(combinations)], **drawn})
        return found


def split_values(key: str, text: str) -> list[str]:
    """Split at commas outside of brackets and quotes, each value as it would stand behind `-O KEY=`.

    >>> split_values("gat.large.pooling", "[mean, max], [mean]")
    ['[mean, max]', '[mean]']
    """
    try:
        content = read_yaml(f"[{text}]")
    except yaml.YAMLError as error:
        raise UserError(f"--grid {key}={text}: is no list of values: {' '.join(str(error).split())}") from error
    return [_written(value) for value in content]


def _written(value: Any) -> str:
    return write_yaml(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()


def _key_and_value(option: str, text: str, example: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise UserError(f"{option} {text!r} has no key=value form: write for instance {option} {example}")
    return key.strip(), value.strip()


def _read(file: Path) -> SpaceFile:
    try:
        content = read_yaml(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"--space {file} is no text in UTF-8: {error}; save it as such") from error
    except yaml.YAMLError as error:
        raise UserError(f"--space {file} is no YAML: {describe_yaml_error(error)}") from error
    if not isinstance(content, dict):
        raise UserError(f"--space {file} is not a mapping: it may have the keys grid, random, trials, seed")
    return validate_config(SpaceFile, content)
