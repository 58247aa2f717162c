"""The kinds of stages that a family has: one value per kind, from which names, sections and dispatch follow."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any

from kdgat.base import Config, unknown_key_text, validate_config
from kdgat.base.configuration import execution_keys
from kdgat.run.plan import InputReference, PlannedStage
from kdgat.stage import Outcome, RunDirectory, StageInputError, StageSpec


@dataclass(frozen=True)
class StageKind:
    """State what one kind of stage reads of the configuration, and which function runs it.

    The fields of `config` are the sections that the stage reads: they, its inputs and `code_version` determine its
    identity, and nothing else does. Raise `code_version` by hand when the same configuration comes to mean another
    result, so that finished stages of the old meaning are not taken for the new one.

    >>> class Count(Config):
    ...     size: int
    >>> kind = StageKind("count", Count, "my_family.stages:count", trains=False)
    >>> kind.plan("count-seed0", "large", 0, {"size": 3, "what else the run has": None}).config
    {'size': 3}
    """

    name: str  # "distill_gat"
    config: type[Config]
    function: str  # "package.module:name", imported in the process that runs the stage
    trains: bool = True
    code_version: int = 1
    parts: str = ""  # "package.module:name", returns the `Parts` that a pool may make ahead of the stage
    title: str = ""  # what reports call its model

    def plan(
        self,
        name: str,
        scale: str,
        seed: int,
        sections: Mapping[str, Any],
        inputs: Mapping[str, InputReference] | None = None,
        execution: Mapping[str, Any] | None = None,
    ) -> PlannedStage:
        """Plan a stage of this kind, with a name that is unique in the plan.

        `sections` are at least those that `config` has as fields: the others are not the stage's business. What is in
        `execution` changes no result.
        """
        chosen = validate_config(self.config, {key: sections[key] for key in self.config.model_fields})
        return PlannedStage(
            name=name,
            stage=self.name,
            scale=scale,
            seed=seed,
            config=chosen.model_dump(mode="json"),
            inputs=dict(inputs or {}),
            execution=dict(execution or {}),
            execution_keys=execution_keys(self.config),
            code_version=self.code_version,
            parts=self.parts,
        )

    def run(self, spec: StageSpec, directory: RunDirectory) -> Outcome:
        """Import the function of this kind and run the stage.

        Raises:
            StageInputError: if the stage was planned for another meaning of its configuration, as by another version.
        """
        if spec.code_version != self.code_version:
            raise StageInputError(
                f"{directory.path.name} was planned with code_version {spec.code_version} of {self.name}, and the code "
                f"here has {self.code_version}: its checkpoints stay; go on with the kdgat that planned it, or train "
                "it anew by the command with --replan"
            )
        outcome: Outcome = resolve_name(self.function)(spec, directory)
        return outcome


@dataclass(frozen=True)
class StageKinds:
    """Hold the kinds of one family by name, in the order in which people are told of them."""

    kinds: tuple[StageKind, ...]
    by_name: Mapping[str, StageKind] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {kind.name: kind for kind in self.kinds})

    def __getitem__(self, name: str) -> StageKind:
        """Return the kind of that name; StageInputError names the nearest one there is."""
        if name not in self.by_name:
            raise StageInputError(f"stage {name!r}: {unknown_key_text(name, list(self.by_name))}")
        return self.by_name[name]

    def __iter__(self) -> Iterator[StageKind]:
        """Go through the kinds in their order."""
        return iter(self.kinds)

    @property
    def names(self) -> tuple[str, ...]:
        """Name all kinds."""
        return tuple(self.by_name)

    @property
    def trained(self) -> tuple[str, ...]:
        """Name the kinds that train."""
        return tuple(kind.name for kind in self.kinds if kind.trains)
