"""Solve assignment problems with the duals that a trained network predicts: the call for people who have some.

    from kdgat.lap.api import WarmStart

    assignment = WarmStart.load("run or weights").solve(cost, mask=None)

The answer is optimal and proved whatever the network says: a prediction changes how long it takes, never what it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import ArrayLike

from kdgat.lap.sections import Solver
from kdgat.lap.training.start import last_weights

if TYPE_CHECKING:
    from kdgat.assignment import Assignment
    from kdgat.lap.models.predictor import Predictor


class WarmStart:
    """Hold a trained network, ready to solve."""

    def __init__(self, predictor: Predictor, weights_path: Path) -> None:
        self.predictor = predictor
        self.weights_path = weights_path

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Load the output directory of `kdgat train lap` (the weights of its last stage), a stage's, or a weights file.

        Raises:
            StageInputError: if no weights of this family are there.
            WeightsError: if they are damaged.
        """
        weights = last_weights(Path(path))

        from kdgat.lap.models.predictor import Predictor  # torch: after the mistakes that need no network to be seen

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
        from kdgat.assignment.exact import solve_matrix
        from kdgat.assignment.matrix import make_matrix  # compiled code: only who solves waits for it

        matrix = make_matrix(cost, mask, maximize=maximize)  # no more rows than columns, to be minimised
        prediction = self.predictor.predict(matrix.cost, matrix.mask.view(np.bool_) if matrix.mask.size else None)
        u, v = matrix.sign * prediction.u, matrix.sign * prediction.v
        if matrix.transposed:
            u, v = v, u
        return solve_matrix(matrix, u, v, method)
