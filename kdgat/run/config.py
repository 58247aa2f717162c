"""What the configuration of a run has in every family: seeds, training, resources, where weights come from."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from kdgat.base import Config, ConfigurationError, unknown_key_text, validate_config
from kdgat.base.configuration import apply_overrides, load_preset
from kdgat.cluster import ResourceRequest
from kdgat.cluster.request import DEFAULT_KEY, configured_request
from kdgat.run.directory import RunError
from kdgat.training import TrainingConfig

Seed = Annotated[int, Field(ge=0, lt=10**9)]  # generators of random numbers refuse negative ones


class RunConfig(Config):
    """Hold what every run depends on; a family adds its sections and says which stages it has.

    `training` holds for every stage that trains, `training_of` says in what single stages differ. A family's presets
    are YAML files in the folder `presets` of `preset_package`.
    """

    preset_package: ClassVar[str]
    default_differences: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # `training_of` where no preset says another

    preset: str | None = Field(None, description="which one this was made from: noted in the results, read by no stage")
    training: TrainingConfig = Field(
        TrainingConfig(),
        description="Training of every stage; -O training.<key> on the command line also beats training_of.",
    )
    training_of: dict[str, dict[str, Any]] = Field(
        default={}, description="per stage that trains: what differs from `training`"
    )
    seeds: tuple[Seed, ...] = Field((0,), min_length=1, description="each trains its own models; --seeds 0 1 2")
    start_from: str | None = Field(
        None, description="a run, registered model or weights whose weights training starts from; null = from scratch"
    )
    resources: dict[str, ResourceRequest] = Field(
        default={DEFAULT_KEY: ResourceRequest()},
        description="per stage, or default: what its job asks for on a cluster; read by no stage",
    )

    @abstractmethod
    def stage_names(self) -> Sequence[str]:
        """Name the stages that resources can be asked for."""

    @abstractmethod
    def trained_stages(self) -> Sequence[str]:
        """Name the stages that train."""

    def dataset_name(self) -> str:
        """Name the data, as `training.safety_factor` does; empty where it has no name."""
        return ""

    @field_validator("seeds")
    @classmethod
    def _refuse_repeated_seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) != len(seeds):
            raise ValueError("a seed stands twice: list each seed once")
        return seeds

    @model_validator(mode="after")
    def _refuse_unknown_stages(self) -> Self:
        refuse_unknown("training_of", self.training_of, self.trained_stages())
        refuse_unknown("resources", self.resources, [*self.stage_names(), DEFAULT_KEY])
        for stage in self.training_of:
            self.training_for(stage)
        return self

    def training_for(self, stage: str) -> TrainingConfig:
        """Return the training settings of one stage: the common ones with its differences."""
        try:
            own = {**self.training.model_dump(), **self.training_of.get(stage, {})}
            return validate_config(TrainingConfig, own).for_dataset(self.dataset_name())
        except ConfigurationError as error:
            raise ConfigurationError(f"training_of.{stage}: {error}") from None

    def require_loggers(self) -> None:
        """Raise ConfigurationError if a package that a stage's `training.loggers` needs is not installed here."""
        for stage in self.trained_stages():
            self.training_for(stage).require_loggers()

    def stated_amounts(self, stage: str) -> frozenset[str]:
        """Name the amounts that somebody asks for in jobs of a stage, in other numbers than the preset's."""
        preset = {} if self.preset is None else load_preset(self.preset_package, self.preset).get("resources", {})
        of_preset = {name: validate_config(ResourceRequest, request or {}) for name, request in preset.items()}
        usual = configured_request(stage, of_preset).explicit_values()
        own = configured_request(stage, self.resources).explicit_values()
        return frozenset(key for key, value in own.items() if usual.get(key) != value)

    def refuse_own_output(self, out: Path) -> None:
        """Refuse to start from the output directory itself: its index, which names the weights, would be replaced."""
        if self.start_from is not None and Path(self.start_from).resolve() == out.resolve():
            raise RunError(
                f"start_from={self.start_from} is --out itself: choose another --out, or leave start_from away, "
                "because what has finished there is not trained again"
            )

    @classmethod
    def from_preset(cls, preset: str, given: Mapping[str, Any], overrides: Sequence[str] = ()) -> Self:
        """Build a configuration from what is given, a preset for the rest, and overrides on top.

        What is given of `training.<key>` holds for every stage: it also takes the place of a difference for that key
        which the preset states in `training_of`. What is given of `training_of.<stage>.<key>` holds for one stage.

        Raises:
            ConfigurationError: naming key, value and fix.
        """
        content = cls.preset_content(preset, given)
        stated = given.get("training")
        common = _with_mode({*_common_keys(overrides), *(stated if isinstance(stated, Mapping) else ())})
        differences = _merged(cls.default_differences, content.get("training_of", {}))
        content["training_of"] = _without(differences, common)
        return apply_overrides(validate_config(cls, {**_merged(content, given), "preset": preset}), overrides)

    @classmethod
    def preset_content(cls, preset: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a preset says, as plain data; `given` is what wins over it."""
        return load_preset(cls.preset_package, preset)

    @classmethod
    def from_data(cls, content: Mapping[str, Any]) -> Self:
        """Read a configuration from plain data, for instance out of `run.json`; ConfigurationError as above."""
        return validate_config(cls, content)

    def completed(self, preset: str | None = None, overrides: Sequence[str] = ()) -> Self:
        """Return a configuration whose unset keys are those of a preset, with overrides on top; errors as above."""
        if preset is not None:
            return self.from_preset(preset, self.model_dump(exclude_unset=True), overrides)
        if not overrides:
            return self
        common = _without(self.model_dump()["training_of"], _common_keys(overrides))
        return apply_overrides(self.model_copy(update={"training_of": common}), overrides)


def refuse_unknown(key: str, names: Sequence[str] | Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse, in a validator, stages that are not known; the text names the nearest one that is."""
    for name in names:
        if name not in known:
            raise PydanticCustomError("unknown_key", "{text}", {"text": f"{key}: {unknown_key_text(name, known)}"})


def _common_keys(overrides: Sequence[str]) -> set[str]:
    """Name the keys of `training` that overrides set for every stage."""
    keys = [override.partition("=")[0].strip() for override in overrides]
    return _with_mode({key.removeprefix("training.") for key in keys if key.startswith("training.")})


def _with_mode(keys: set[str]) -> set[str]:
    """Return the keys, and `mode` beside `monitor`: of another metric, another end may be the better one."""
    return keys | {"mode"} if "monitor" in keys else keys


def _without(differences: Mapping[str, Mapping[str, Any]], common: set[str]) -> dict[str, dict[str, Any]]:
    """Return what stages differ in, without the keys that hold for every stage."""
    return {
        stage: {key: value for key, value in own.items() if key not in common} for stage, own in differences.items()
    }


def _merged(content: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested plain data in which `given` wins, key by key at any depth."""
    merged = dict(content)
    for key, value in given.items():
        below = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = _merged(below, value) if both else value  # type: ignore[arg-type]
    return merged
