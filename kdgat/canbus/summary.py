"""What recordings hold, as they are read and cut into windows, and what was injected: one row each, and their sums."""

from typing import Annotated, Any

from pydantic import Field

from kdgat.base import Config
from kdgat.canbus.messages import Messages
from kdgat.canbus.near_copies import kept_blocks, sketch
from kdgat.graphs import GraphColumns

DUPLICATE_ROLE = "duplicate"  # of a recording that is left out, because another one holds the same messages
VEHICLES = "vehicles"  # attribute of a store: of each recording, where many train
LABELS_ROLE = "labels"  # of a file beside a recording that tells its labels
Count = Annotated[int, Field(ge=0)]


class RecordingSummary(Config):
    """One recording as it was read."""

    name: str
    scenario: str
    role: str = Field(description="train (and validation, where each recording does both), validation or test")
    vehicle: str | None = Field(
        default=None, description="that it is of; where many train", exclude_if=lambda v: v is None
    )
    num_messages: Count = 0
    num_windows: Count = 0
    num_attack_windows: Count = 0
    num_bad_rows: Count = 0
    num_backward: Count = Field(default=0, description="timestamps that run backwards, kept in file order")
    duplicate_of: str | None = Field(
        default=None, description="the recording with the same messages that is used instead"
    )
    content_hash: str | None = None
    blocks: list[str] = Field(default=[], description="hashes of some blocks of a training recording's messages")


class SplitSummary(Config):
    """One store of windows: train, validation, injected, test-..."""

    num_windows: Count
    num_attack_windows: Count
    num_messages: Count = 0


class DataSummary(Config):
    """Where the windows come from."""

    num_messages: Count = 0
    num_windows: Count = 0
    num_attack_windows: Count = 0
    num_dropped_duplicates: Count = 0
    num_bad_rows: Count = 0
    bad_rows: list[str] = Field(default=[], description="the first bad rows: file, line, reason")
    splits: dict[str, SplitSummary] = Field(default={})
    recordings: list[RecordingSummary] = Field(default=[])
    window: dict[str, Any] = Field(default={}, description="window parameters the graphs were built with")
    notes: list[str] = Field(default=[])


class InjectedAttack(Config):
    """How much of one attack kind was injected into benign traffic for training."""

    num_windows: Count = Field(description="windows that hold at least one injected message of this kind")
    num_messages: Count = Field(default=0, description="injected messages in these windows")
    num_recordings: Count = Field(default=0, description="virtual recordings under this attack")


class InjectionSummary(Config):
    """Attacks injected into benign traffic of virtual vehicles while training."""

    enabled: bool
    seed: int | None = None
    num_virtual_vehicles: Count = 0
    num_windows: Count = 0
    num_attack_windows: Count = 0
    attacks: dict[str, InjectedAttack] = Field(default={})
    diversity: dict[str, Count] = Field(
        default={}, description="benign change -> number of virtual vehicles that got it"
    )


class RunningSummary:
    """A `DataSummary` that grows with every recording."""

    def __init__(self, windows: Config) -> None:
        """Begin without recordings; `windows` states how they are cut."""
        self.content = DataSummary(window=windows.model_dump(mode="json"))

    def add(self, row: RecordingSummary, bad_rows: list[str]) -> None:
        """Add one recording that is used."""
        old = self.content
        self.content = old.model_copy(
            update={
                "num_messages": old.num_messages + row.num_messages,
                "num_windows": old.num_windows + row.num_windows,
                "num_attack_windows": old.num_attack_windows + row.num_attack_windows,
                "num_bad_rows": old.num_bad_rows + row.num_bad_rows,
                "bad_rows": [*old.bad_rows, *bad_rows],
                "recordings": [*old.recordings, row],
            }
        )

    def add_duplicate(self, row: RecordingSummary) -> None:
        """Add a recording that was left out, with the one that holds the same messages; a near-copy, by a note."""
        old = self.content
        kept = {other.content_hash: f"{other.scenario}/{other.name}" for other in reversed(old.recordings)}
        row = row.model_copy(update={"duplicate_of": kept.get(row.content_hash)})
        if row.duplicate_of is None:
            self.note(f"left out, for it shares blocks of messages with a test recording: {row.scenario}/{row.name}")
            old = self.content
        self.content = old.model_copy(
            update={"num_dropped_duplicates": old.num_dropped_duplicates + 1, "recordings": [*old.recordings, row]}
        )

    def add_split(self, name: str, split: SplitSummary) -> None:
        """Add what a store holds."""
        self.content = self.content.model_copy(update={"splits": {**self.content.splits, name: split}})

    def note(self, text: str) -> None:
        """Add a sentence that the report shows."""
        self.content = self.content.model_copy(update={"notes": [*self.content.notes, text]})


def summarise_recording(
    messages: Messages, role: str, *graphs: GraphColumns, vehicle: str | None = None
) -> RecordingSummary:
    """Describe one recording, and the windows that it was cut into, in one part or several."""
    return RecordingSummary(
        name=messages.name,
        scenario=messages.scenario,
        role=role,
        vehicle=vehicle,
        num_messages=len(messages),
        num_windows=sum(part.num_graphs for part in graphs),
        num_attack_windows=sum(int(part["y"].sum()) for part in graphs),
        num_bad_rows=messages.num_bad_rows,
        num_backward=messages.num_backward,
        content_hash=messages.content_hash(),
        blocks=sketch(kept_blocks(messages)) if role in ("train", "validation") else [],
    )


def list_bad_rows(messages: Messages) -> list[str]:
    """Describe the first bad rows of a recording: where, and what is wrong."""
    return [f"{messages.scenario}/{messages.name}:{row.line}: {row.reason}" for row in messages.bad_rows]
