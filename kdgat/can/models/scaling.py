"""Calibration of logits: a temperature and a bias, fitted on validation windows."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from kdgat.base import Config, UserError

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 1000.0
NEWTON_STEPS = 100
GRADIENT_TOLERANCE = 1e-9
LOGIT_LIMIT = 30.0  # a probability further out is 0 or 1 in float64 for any purpose here
CALIBRATED_LIMIT = 60.0  # of a calibrated logit: an autoencoder's error has no upper end


def sigmoid(logits: ArrayLike) -> NDArray[np.float64]:
    """Return 1 / (1 + exp(-logits)) without overflow."""
    half = 0.5 * np.asarray(logits, dtype=np.float64)
    return 0.5 * (1.0 + np.tanh(half))


def logit(probability: ArrayLike) -> NDArray[np.float64]:
    """Return log(p / (1 - p)), limited to +-30 so that 0 and 1 stay finite."""
    values = np.asarray(probability, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return np.clip(np.log(values) - np.log1p(-values), -LOGIT_LIMIT, LOGIT_LIMIT)


class Scaling(Config):
    """Map raw logits to calibrated ones: logits / temperature + bias."""

    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    bias: float = Field(default=0.0, allow_inf_nan=False)

    def calibrated(self, logits: ArrayLike) -> NDArray[np.float64]:
        """Return the calibrated logits, float64 [G]."""
        return np.asarray(logits, dtype=np.float64) / self.temperature + self.bias


def fit_scaling(
    logits: ArrayLike,
    label: ArrayLike,
    *,
    method: Literal["none", "temperature", "platt"] = "platt",
    weight: ArrayLike | None = None,
) -> Scaling:
    """Fit temperature (and bias for `platt`) by maximum likelihood on validation windows.

    logits float [G], label [G] in {0, 1}, weight float [G] (to let each vehicle count the same).  The targets are
    smoothed by the class counts (Platt 1999, eq. 14; Lin, Lin and Weng 2007), so separable validation data do not
    drive the probabilities to 0 and 1.  The temperature stays within 0.05 and 1000: a score that ranks validation
    backwards becomes uninformative, never inverted.  Raises UserError without both classes, or if a score is
    not finite.
    """
    if method == "none":
        return Scaling()
    scores, labels = np.asarray(logits, dtype=np.float64), np.asarray(label).astype(np.bool_)
    if scores.shape != labels.shape or scores.ndim != 1:
        raise UserError(f"logits {scores.shape} and label {labels.shape} must be vectors of the same length")
    if not np.isfinite(scores).all():
        raise UserError("validation logits hold NaN or infinity; did the model diverge?")
    weights = np.ones(scores.size) if weight is None else np.asarray(weight, dtype=np.float64)
    num_attacks, num_benign = int(np.count_nonzero(labels)), int(np.count_nonzero(~labels))
    if not num_attacks or not num_benign:
        raise UserError(
            f"calibration needs benign and attack validation windows, got {num_benign} and {num_attacks};"
            " add injected attacks to validation or set calibration to none"
        )
    target = np.where(labels, (num_attacks + 1.0) / (num_attacks + 2.0), 1.0 / (num_benign + 2.0))
    slope, bias = _fit_logistic(
        scores, target, weights / weights.sum(), free=(True, method == "platt"), start=(1.0, 0.0)
    )
    limited = float(np.clip(slope, 1.0 / MAX_TEMPERATURE, 1.0 / MIN_TEMPERATURE))
    if limited != slope and method == "platt":
        _, bias = _fit_logistic(scores, target, weights / weights.sum(), free=(False, True), start=(limited, bias))
    return Scaling(temperature=1.0 / limited, bias=bias)


def _fit_logistic(
    scores: NDArray[np.float64],
    target: NDArray[np.float64],
    weights: NDArray[np.float64],
    free: tuple[bool, bool],
    start: tuple[float, float],
) -> tuple[float, float]:
    """Minimise the cross-entropy of sigmoid(slope * score + bias) by Newton steps with backtracking."""
    # Scores of very different spread (a VGAE error, a GAT logit) make the Hessian ill-conditioned without scaling.
    spread = float(np.abs(scores).max()) or 1.0
    design = np.stack([scores / spread, np.ones_like(scores)])[np.array(free)]  # [P, G]
    fixed_part = scores * (0.0 if free[0] else start[0]) + (0.0 if free[1] else start[1])
    parameters = np.array([start[0] * spread, start[1]])[np.array(free)]

    def loss(values: NDArray[np.float64]) -> float:
        margin = values @ design + fixed_part
        return float(np.dot(weights, np.logaddexp(0.0, margin) - target * margin))

    current = loss(parameters)
    for _ in range(NEWTON_STEPS):
        probability = sigmoid(parameters @ design + fixed_part)
        gradient = design @ (weights * (probability - target))
        if np.abs(gradient).max() < GRADIENT_TOLERANCE:
            break
        curvature = (design * (weights * probability * (1.0 - probability))) @ design.T
        step = np.linalg.solve(curvature + 1e-12 * np.eye(len(parameters)), gradient)
        length = 1.0
        while length > 1e-10 and loss(parameters - length * step) > current - 1e-4 * length * float(gradient @ step):
            length /= 2
        if length <= 1e-10:
            break  # no descent is left at floating-point resolution
        parameters = parameters - length * step
        current = loss(parameters)
    values = iter(parameters.tolist())
    slope = next(values) / spread if free[0] else start[0]
    return slope, next(values) if free[1] else start[1]
