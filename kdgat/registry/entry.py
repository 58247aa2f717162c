"""What a registry says about its models: the content of `index.json`, and of the `entry.json` in each model."""

from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

_CHANGES = ("promotion", "rollback")  # kinds of changes by which another model goes into service
ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"

Scores = dict[str, float | None]  # metric -> value; None where the data cannot define it
Metrics = dict[str, Scores]  # scenario -> scores


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", ser_json_inf_nan="constants")


def now() -> str:
    """Return the time as it stands in records."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class ModelFile(_Record):
    """One file of a model, known by its content."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    num_bytes: int = Field(ge=0)


class ModelEntry(_Record):
    """One model; nothing in it changes once it is registered."""

    id: str = Field(pattern=ID_PATTERN)
    family: str
    dataset: str
    created: str = Field(default_factory=now)
    content: str = Field(description="hash of what makes it this model: the same one is not registered twice")
    parent: str | None = Field(None, description="id of the model whose weights it started from")
    metrics: Metrics = Field(default={}, description="scenario -> metric -> value, as measured when it was registered")
    provenance: dict[str, Any] = Field(default={}, description="revision, packages, image, configuration, recordings")
    files: dict[str, ModelFile] = Field(default={}, description="path below the model's directory -> content")

    @property
    def service(self) -> str:
        """Name what it can be in service for: of each family and dataset, one model is."""
        return service_name(self.family, self.dataset)

    def test_set(self, scenario: str) -> str:
        """Return a text that is the same for models measured on the same recordings of a scenario, in equal windows.

        Of models from before their recordings were noted, it is known by how many windows there were.
        """
        scores, measured_on = self.metrics.get(scenario, {}), self.provenance.get("measured_on") or {}
        counts = "/".join(f"{scores.get(name) or 0:.0f}" for name in ("num_windows", "num_attack_windows"))
        return f"{measured_on.get(scenario) or f'unknown recordings of {self.dataset}'}/{counts}"


class ServiceChange(_Record):
    """One line of the history: another model is in service from now on, or nights may, or may not, change which."""

    kind: Literal["promotion", "rollback", "hold", "release"]
    when: str = Field(default_factory=now)
    family: str
    dataset: str
    previous: str | None = Field(description="id of the model that was in service before")
    model: str = Field(description="id of the model that is in service from now on")
    reason: str
    by: str = Field(description="who decided: nightly, or a person")
    hold: bool = Field(False, description="whether nights leave that model in service")
    anchors: tuple[str, ...] | None = Field(
        None,
        description="earlier models that what follows is held to, too; None: a person decided, which begins anew",
    )

    def describe_hold(self) -> str:
        """State who holds the model in service, since when and why."""
        return f"held by {self.by} since {self.when}: {self.reason}"

    @property
    def service(self) -> str:
        """Name what the model is in service for."""
        return service_name(self.family, self.dataset)


class Judgement(_Record):
    """What a night decided about a model, and why."""

    model: str = Field(description="id of the model that was decided about")
    when: str = Field(default_factory=now)
    compared_with: str | None = Field(description="id of the model that was in service")
    accepted: bool
    reasons: tuple[str, ...] = Field(description="a sentence each")
    by: str

    def is_repeated_by(self, other: "Judgement") -> bool:
        """Tell whether another decision says the same, at whatever time."""
        return self == other.model_copy(update={"when": self.when})


class RegistryIndex(_Record):
    """The content of `index.json`: all models, decisions, and changes of which is in service; only ever added to."""

    schema_version: Literal[1] = 1
    models: tuple[ModelEntry, ...] = ()
    history: tuple[ServiceChange, ...] = ()
    decisions: tuple[Judgement, ...] = ()

    def in_service(self, family: str, dataset: str) -> str | None:
        """Return the id of the model in service, None if there is none."""
        served = self.served(family, dataset)
        return served[-1] if served else None

    def served(self, family: str, dataset: str) -> list[str]:
        """List the models that a rollback would go back through, the one in service last.

        A rollback takes the last one away: the next rollback goes one further back, not forth again.
        """
        return [change.model for change in self._promotions(family, dataset)]

    def anchors(self, entry: ModelEntry) -> tuple[str, ...]:
        """List the earlier models that what takes the place of this one is held to as well."""
        promotions = reversed(self._promotions(entry.family, entry.dataset))
        return next((change.anchors or () for change in promotions if change.model == entry.id), ())

    def held(self, family: str, dataset: str) -> ServiceChange | None:
        """Return the change since which nights leave the model in service; None if they need not."""
        return self.holds().get(service_name(family, dataset))

    def holds(self) -> dict[str, ServiceChange]:
        """Return what nights leave in service: family/dataset -> the change since which they do."""
        last = {change.service: change for change in self.history}
        return {service: change for service, change in last.items() if change.hold}

    def promoted_since(self, model_id: str, when: str) -> ServiceChange | None:
        """Return the last change, not before `when`, that put a model into service; None if there was none."""
        changes = [
            change
            for change in self.history
            if change.model == model_id and change.when >= when and change.kind in _CHANGES
        ]
        return changes[-1] if changes else None

    def of_dataset(self, dataset: str) -> "RegistryIndex":
        """Return what there is of one dataset."""
        models = tuple(entry for entry in self.models if entry.dataset == dataset)
        ids = {entry.id for entry in models}
        return RegistryIndex(
            models=models,
            history=tuple(change for change in self.history if change.dataset == dataset),
            decisions=tuple(decision for decision in self.decisions if decision.model in ids),
        )

    def decisions_about(self, model_id: str) -> list[Judgement]:
        """Return what nights decided about a model, the last one last."""
        return [decision for decision in self.decisions if decision.model == model_id]

    def refused_since_promotion(self, family: str, dataset: str) -> list[Judgement]:
        """Return the decisions of nights since another model went into service, none of which put one there."""
        of_dataset = self.of_dataset(dataset)
        changes = [change for change in of_dataset.history if change.family == family and change.kind in _CHANGES]
        ids = {entry.id for entry in of_dataset.models if entry.family == family}
        found: list[Judgement] = []
        for decision in of_dataset.decisions:
            if decision.model in ids and (not changes or decision.when >= changes[-1].when):
                found = [] if decision.accepted else [*found, decision]
        return found

    def _promotions(self, family: str, dataset: str) -> list[ServiceChange]:
        promotions: list[ServiceChange] = []
        for change in self.history:
            if change.service == service_name(family, dataset):
                if change.kind == "promotion":
                    promotions.append(change)
                elif change.kind == "rollback":
                    del promotions[-1:]
        return promotions

    def services(self) -> dict[str, str]:
        """Return what is in service: family/dataset -> model id."""
        pairs = dict.fromkeys((change.family, change.dataset) for change in self.history)
        found = {service_name(*pair): self.in_service(*pair) for pair in pairs}
        return {service: model for service, model in found.items() if model is not None}


def service_name(family: str, dataset: str) -> str:
    """Name what one model is in service for."""
    return f"{family}/{dataset}"
