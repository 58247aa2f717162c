"""Scores of the default detector, window by window: what the report draws along a recording."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError, write_bytes_atomically

SCORES_FOLDER = "scores"


@dataclass(frozen=True)
class Scores:
    """Windows of one scenario in file order."""

    probability: NDArray[np.float32]  # [G] calibrated
    label: NDArray[np.int8]  # [G] 1: the window holds an attack message
    recording: NDArray[np.int32]  # [G] index into recording_names
    recording_names: Sequence[str]
    start_time: NDArray[np.float64]  # [G] s
    attack_count: NDArray[np.int32]  # [G] attack messages in the window
    decision: NDArray[np.bool_] | None = None  # [G] as decided, where the rule has one threshold per recording

    def validate(self) -> None:
        """Raise UserError unless all columns describe the same windows."""
        num_windows = len(self.probability)
        for name in ("label", "recording", "start_time", "attack_count"):
            if len(getattr(self, name)) != num_windows:
                raise UserError(f"{name} has {len(getattr(self, name))} windows, probability has {num_windows}")
        if self.decision is not None and len(self.decision) != num_windows:
            raise UserError(f"decision has {len(self.decision)} windows, probability has {num_windows}")
        if not np.all((self.probability >= 0) & (self.probability <= 1)):
            raise UserError("probability must lie in 0 to 1 and not be NaN")
        if num_windows and not 0 <= self.recording.min() <= self.recording.max() < len(self.recording_names):
            raise UserError(f"recording must index the {len(self.recording_names)} recording names")


def scores_path(output: Path, scenario: str) -> Path:
    """Name the score file of a scenario in the output directory of a run."""
    return output / SCORES_FOLDER / f"{scenario}.npz"


def write_scores(path: Path, scores: Scores) -> None:
    """Write scores atomically, as a compressed npz without pickle."""
    scores.validate()
    columns = {field.name: getattr(scores, field.name) for field in fields(Scores)}
    columns["recording_names"] = np.array(list(scores.recording_names), dtype=np.str_)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{name: column for name, column in columns.items() if column is not None})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes_atomically(path, buffer.getvalue())


def read_scores(path: Path) -> Scores:
    """Read scores; UserError names the file and what is wrong with it."""
    try:
        with np.load(path, allow_pickle=False) as file:
            columns = {field.name: file[field.name] for field in fields(Scores) if field.name in file.files}
        names = columns.pop("recording_names").tolist()
        scores = Scores(recording_names=names, **columns)
        scores.validate()
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, EOFError) as error:
        raise UserError(f"{path} is not a usable file of scores ({error}); run the evaluation again") from error
    return scores
