"""Solve assignment problems with the duals that a trained network predicts: the call for people who have some.

    from kdgat.lap.warm_start import WarmStart

    assignment = WarmStart.load("run or weights").solve(cost, mask=None)

The answer is optimal and proved whatever the network says: a prediction changes how long it takes, never what it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import ArrayLike

from kdgat.lap.errors import LapError
from kdgat.lap.names import FAMILY, WEIGHTS
from kdgat.lap.sections import Solver
from kdgat.run.directory import DONE_STATES, OutputDirectory
from kdgat.stage.directory import RunDirectory
from kdgat.stage.outcome import Finished

if TYPE_CHECKING:
    from kdgat.lap.assignment import Assignment
    from kdgat.lap.predictor import Predictor


class WarmStartError(LapError):
    """No weights of a warm start lie where they were looked for; the text says what does, and the fix."""


class WarmStart:
    """Hold a trained network, ready to solve."""

    def __init__(self, predictor: Predictor, weights_path: Path) -> None:
        self.predictor = predictor
        self.weights_path = weights_path

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Load the output directory of `kdgat train lap` (the weights of its last stage), a stage's, or a weights file.

        Raises:
            WarmStartError: if no weights of this family are there.
            WeightsError: if they are damaged.
        """
        weights = find_weights(Path(path))

        from kdgat.lap.predictor import Predictor  # torch: after the mistakes that need no network to be seen

        return cls(Predictor.load(weights), weights)

    def solve(
        self,
        cost: ArrayLike,
        mask: ArrayLike | None = None,
        *,
        maximize: bool = False,
        method: Solver = "core",
    ) -> Assignment:
        """Match all rows to columns (all columns to rows where they are fewer) at least total cost.

        Args:
            cost: [n, m], finite numbers.
            mask: [n, m] bool, True where a pair is forbidden.
            maximize: seek the largest total instead.
            method: how the solver searches.

        Raises:
            CostError: if cost or mask cannot be used.
            InfeasibleError: if no matching of the smaller side is allowed.
        """
        from kdgat.lap.matrix import make_matrix  # compiled code: only who solves waits for it
        from kdgat.lap.solver import solve_matrix

        matrix = make_matrix(cost, mask, maximize=maximize)  # no more rows than columns, to be minimised
        prediction = self.predictor.predict(matrix.cost, matrix.mask.view(np.bool_) if matrix.mask.size else None)
        u, v = matrix.sign * prediction.u, matrix.sign * prediction.v
        if matrix.transposed:
            u, v = v, u
        return solve_matrix(matrix, u, v, method)


def find_weights(path: Path) -> Path:
    """Return the weights file that a path stands for.

    A run directory of a stage, or a file, is taken as it is. Of a run it is the last training stage that finished, of
    the seed with the lowest validation loss there.

    Raises:
        WarmStartError: saying what is missing.
    """
    if path.is_file():
        return path
    if not path.is_dir():
        raise WarmStartError(f"{path} does not exist: give the --out of `kdgat train lap`, or a weights file")
    output = OutputDirectory(path)
    if not output.index_path.is_file():
        own = RunDirectory(path).weights_path
        if own.is_file():
            return own
        raise WarmStartError(
            f"{path} holds neither {output.index_path.name} nor {own.name}: give the --out of `kdgat train lap`, the "
            "directory of one of its training stages, or a weights file"
        )
    index = output.read_index()
    if index.family != FAMILY:
        raise WarmStartError(f"{path} is a run of family {index.family!r}: a warm start comes from `kdgat train lap`")
    return _last_weights(output)


def _last_weights(output: OutputDirectory) -> Path:
    """Return the weights of the last training stage of a run that finished."""
    found: list[tuple[int, float, Path]] = []  # place of the stage, validation loss, weights
    index = output.read_index()
    places = list(dict.fromkeys((record.stage, record.scale) for record in index.stages))
    for record in index.stages:
        if record.directory is None or record.state not in DONE_STATES:
            continue
        directory = output.stage_directory(record)
        outcome = directory.read_outcome()
        if not isinstance(outcome, Finished):
            continue
        if WEIGHTS in outcome.artifacts:
            loss = outcome.metrics.get("validation_loss", float("inf"))
            path = directory.path / outcome.artifacts[WEIGHTS]
            found.append((places.index((record.stage, record.scale)), loss, path))
    if not found:
        raise WarmStartError(
            f"{output.path}: no training stage has finished: run `kdgat train lap` with this --out to its end"
        )
    last = max(place for place, _, _ in found)
    return min((loss, path) for place, loss, path in found if place == last)[1]
