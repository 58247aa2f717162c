"""Settings of windows and of injected attacks: read where a run is planned, which has no compiler."""

from typing import Annotated, Final, Self

from pydantic import AllowInfNan, Field, model_validator

from kdgat.base import Config, unknown_key_text

ATTACKS: Final = ("dos", "fuzzing", "spoofing", "systematic", "replay", "suppression", "masquerade", "sparse")
"""The attacks that can be injected, by name."""


class WindowConfig(Config):
    """State how a recording is cut into windows.

    >>> WindowConfig(stride=50)
    WindowConfig(size=100, stride=50)
    """

    size: int = Field(100, ge=2, le=10_000, description="messages in a window")
    stride: int = Field(100, ge=1, description="messages between the starts of two windows")


def num_windows(num_messages: int, config: WindowConfig) -> int:
    """Count the windows of a recording; one that is shorter than a window gives one short graph.

    >>> num_windows(250, WindowConfig(size=100, stride=50))
    4
    """
    if num_messages == 0:
        return 0
    return max(1, (num_messages - config.size) // config.stride + 1)


class InjectionConfig(Config):
    """State how much virtual traffic is made and what happens in it.

    >>> InjectionConfig(attack_weights={"dos": 1.0, "sparse": 3.0}).attack_weights["sparse"]
    3.0
    """

    enabled: bool = Field(True, description="false trains on the recordings alone, for comparison")
    variants: int = Field(300, ge=1, description="virtual recordings in the pool")
    validation_share: float = Field(0.2, gt=0.0, le=1.0, description="virtual recordings for validation, of variants")
    kept_fraction: float = Field(0.4, gt=0.0, le=1.0, description="share of a virtual recording's windows kept")
    duration_s: tuple[float, float] = Field((15.0, 45.0), description="shortest and longest virtual recording")
    clean_fraction: float = Field(0.15, ge=0.0, le=1.0, description="share of virtual recordings without attack")
    original_fraction: float = Field(0.25, ge=0.0, le=1.0, description="share that keep the vehicle as recorded")
    interleave_fraction: float = Field(0.15, ge=0.0, le=1.0, description="share with a second bus interleaved")
    # Any number, not a finite one alone: the validator below names the attack, the value and the fix.
    attack_weights: dict[str, Annotated[float, AllowInfNan(True)]] = Field(
        default={
            "dos": 1.0, "fuzzing": 1.2, "spoofing": 2.0, "systematic": 0.5,
            "replay": 0.7, "suppression": 0.9, "masquerade": 1.6, "sparse": 3.0,
        },
        description=(
            "how often each attack is drawn, in proportion: dos floods with one identifier of high priority; fuzzing "
            "sends random identifiers and payloads; spoofing forges payloads of one known identifier, systematic of "
            "several at once; replay sends recorded messages again; suppression silences a sender; masquerade takes "
            "its place; sparse injects single messages"
        ),
    )  # fmt: skip

    @model_validator(mode="after")
    def _check_ranges_and_weights(self) -> Self:
        shortest, longest = self.duration_s
        if not 0.0 < shortest <= longest < float("inf"):
            raise ValueError(
                f"duration_s={[shortest, longest]}: expected [shortest, longest] in seconds, 0 < shortest <= longest"
            )
        for name, weight in self.attack_weights.items():
            if name not in ATTACKS:
                raise ValueError(f"attack_weights: {unknown_key_text(name, ATTACKS)}")
            if not 0.0 <= weight < float("inf"):
                raise ValueError(f"attack_weights.{name}={weight}: give a number from 0 up; 0 never draws the attack")
        if not sum(self.attack_weights.values()) > 0.0:
            raise ValueError(
                f"attack_weights={self.attack_weights}: give at least one attack a weight above 0; for traffic "
                "without attacks set clean_fraction=1"
            )
        return self
