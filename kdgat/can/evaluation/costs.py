"""What each model costs: its size, and how long it takes for a window, on the machine that evaluated it.

Times are never the same twice, so they stand in a file of their own and in no result that is compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import Field

from kdgat.base import Config, write_bytes_atomically
from kdgat.base.kept import read_kept

COSTS_FILE: Final = "costs.json"


class ModelCost(Config):
    """Size and speed of one model; a fusion's times include its members', its size does not."""

    num_parameters: int
    num_bytes: int = Field(description="of the file of weights")
    median_ms: float = Field(description="of one window by itself")
    percentile_99_ms: float
    windows_per_second: float = Field(description="in batches")


class Costs(Config):
    """What the models of one seed cost on one machine."""

    device: str
    seed: int
    num_threads: int = 1
    num_single: int = Field(description="windows that were to be timed one by one")
    batch_size: int
    models: dict[str, ModelCost]

    def write(self, path: Path) -> None:
        """Write atomically."""
        write_bytes_atomically(path, (self.model_dump_json(indent=2) + "\n").encode())

    @staticmethod
    def read(path: Path) -> Costs:
        """Read what `write` wrote."""
        return read_kept(
            Costs, path.read_bytes(), path, "remove the folder of the stage that wrote it, and train again"
        )
