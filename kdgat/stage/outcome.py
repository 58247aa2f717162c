"""How an attempt at a stage ended: the content of `outcome.json` and the exit status."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from kdgat.base.kept import read_kept
from kdgat.stage.errors import RunDirectoryError

EXIT_FINISHED = 0
EXIT_FAILED = 1
EXIT_ENVIRONMENT = 69  # EX_UNAVAILABLE of sysexits.h: also where no outcome could be written
EXIT_PAUSED = 75  # EX_TEMPFAIL of sysexits.h: try again later


VALIDATED = "validation_"
OF_TRAINING = ("epochs", "best_epoch", "num_parameters")
MOST_METRICS = 10
COUNT = "num_"


class FailureKind(StrEnum):
    """Why a stage failed, as far as it matters for what to do next."""

    CUDA_OOM = "CUDA_OOM"
    HOST_OOM = "HOST_OOM"
    NUMERIC = "NUMERIC"
    BAD_INPUT = "BAD_INPUT"
    ENVIRONMENT = "ENVIRONMENT"  # the node, its filesystem or its GPU: elsewhere, or later, the stage would go on
    ERROR = "ERROR"


SENTENCES = (FailureKind.BAD_INPUT, FailureKind.NUMERIC, FailureKind.ENVIRONMENT)  # say what to do by themselves


class _Outcome(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Finished(_Outcome):
    """The stage is done; artifacts map a name to a path relative to the run directory.

    >>> outcome = Finished(metrics={"f1": 0.98765, "num_parameters": 367748}, artifacts={"weights": "weights.pt"})
    >>> outcome.describe_metrics()
    'f1 0.9877, 367,748 parameters'
    >>> parse_outcome(outcome.model_dump_json()) == outcome
    True
    """

    status: Literal["finished"] = "finished"
    metrics: dict[str, float] = Field(default_factory=dict)
    artifacts: dict[str, str] = Field(default_factory=dict)

    def describe_metrics(self) -> str:
        """Write the metrics in one line; of a stage that validated, what was validated and how long it trained."""
        names = list(self.metrics)
        if any(name.startswith(VALIDATED) for name in names):
            names = [name for name in names if name.startswith(VALIDATED) or name in OF_TRAINING]
        shown = [_describe(name, self.metrics[name]) for name in names[:MOST_METRICS]]
        more = len(names) - len(shown)
        return ", ".join([*shown, *([f"{more} more"] if more else [])])


def _describe(name: str, value: float) -> str:
    text = f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"
    what, dash, whose = name.removeprefix(COUNT).partition("-")  # windows_test-SCENARIO: names of data stay as they are
    words = what.replace("_", " ") + dash + whose
    return f"{text} {words}" if name.startswith(COUNT) else f"{words} {text}"


class Paused(_Outcome):
    """The stage needs more time and resumes from `checkpoint` (empty: from its start).

    `needed_s` is given when it refused to train: a job shorter than this gets nowhere.
    """

    status: Literal["paused"] = "paused"
    checkpoint: str
    reason: str
    needed_s: float | None = None


class Failed(_Outcome):
    """The stage cannot continue; `evidence` is what a person needs to see."""

    status: Literal["failed"] = "failed"
    kind: FailureKind
    evidence: str

    def describe(self) -> str:
        """Return the evidence; with the kind before it where it is a traceback and no sentence.

        >>> Failed(kind=FailureKind.BAD_INPUT, evidence="a.csv is empty").describe()
        'a.csv is empty'
        """
        return self.evidence if self.kind in SENTENCES else f"{self.kind}: {self.evidence}"


Outcome = Finished | Paused | Failed
_ADAPTER: TypeAdapter[Outcome] = TypeAdapter(Annotated[Outcome, Field(discriminator="status")])


def parse_outcome(text: str | bytes, place: object = "outcome.json") -> Outcome:
    """Read the outcome in a file; RunDirectoryError if there is none that this kdgat understands."""
    advice = "put a good copy of it back, or remove it: the stage goes on from its last checkpoint"
    return read_kept(_ADAPTER, text, place, advice, RunDirectoryError)


def exit_status(outcome: Outcome) -> int:
    """Translate an outcome to the exit status of the process."""
    if isinstance(outcome, Finished):
        return EXIT_FINISHED
    if isinstance(outcome, Paused):
        return EXIT_PAUSED
    return EXIT_ENVIRONMENT if outcome.kind is FailureKind.ENVIRONMENT else EXIT_FAILED
