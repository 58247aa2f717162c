"""The dual network compiled for one CPU core: the arithmetic of `kdgat.lap.models.dual`, one node at a time.

Everything that a node needs stays in registers and the first cache; PyTorch would write each of some twenty
intermediate arrays to memory. Results agree with PyTorch's to about 1e-4 of the unit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kdgat.lap.graphs import Neighbours
from kdgat.lap.models.dual import FORBIDDEN, LOWEST, SHARPNESS, WIDEST, DualNetwork, Phase

_FEATURE_LIMIT = np.float32(8.0)
_WIDEST, _SHARPNESS, _LOWEST = np.float32(WIDEST), np.float32(SHARPNESS), np.float32(LOWEST)
# exp(x) = p(x / 64)^64 on [LOWEST, 0], p the Taylor polynomial of degree 6: a vector operation without a library.
_STEPS = np.float32(1.0 / 64.0)


class CompiledNetwork:
    """Hold the weights of a dual network as arrays."""

    def __init__(self, model: DualNetwork) -> None:
        self.hidden = model.config.hidden
        phases = list(zip(model.row_phases, model.column_phases, strict=True))
        self.rounds = [(_weights(row), _weights(column)) for row, column in phases]

    def __call__(self, found: Neighbours) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return normalised duals: u [n], the least reduced cost of each row, and v [m]."""
        row_lists, column_lists = _filled(found, "row"), _filled(found, "column")
        num_rows, num_columns = len(row_lists[0]), len(column_lists[0])
        u, v = np.zeros(num_rows, np.float32), np.zeros(num_columns, np.float32)
        rows, columns = np.zeros((num_rows, self.hidden), np.float32), np.zeros((num_columns, self.hidden), np.float32)
        highest = float("inf") if num_rows == num_columns else 0.0
        for row_weights, column_weights in self.rounds:
            update(*row_lists, u, v, rows, columns, float("inf"), *row_weights)
            update(*column_lists, v, u, columns, rows, highest, *column_weights)
        return least_reduced(*row_lists, v), v


def _weights(phase: Any) -> tuple[Any, ...]:
    """Return the parameters of a phase in the order in which `update` takes them, matrices inputs first."""
    assert isinstance(phase, Phase)

    def matrix(layer: Any) -> NDArray[np.float32]:
        return np.ascontiguousarray(layer.weight.detach().cpu().numpy().T, np.float32)

    def vector(parameter: Any) -> NDArray[np.float32]:
        return np.ascontiguousarray(parameter.detach().cpu().numpy(), np.float32)

    layers = (phase.say, phase.inner, phase.outer, phase.step)
    arrays = [array for layer in layers for array in (matrix(layer), vector(layer.bias))]
    scalars = np.float32(phase.bid.item()), np.float32(phase.relaxation.item())
    return vector(phase.log_beta.exp()), *scalars, *arrays


def _filled(found: Neighbours, side: str) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Return normalised costs and places of one side's lists; an edge that is none gets the place 0 and a high cost."""
    costs, places = (found.row_costs, found.row_columns) if side == "row" else (found.column_costs, found.column_rows)
    unit = found.scaling.unit
    scaled = costs * np.float32(1.0 / unit if unit > 0.0 else 0.0)
    if not (places < 0).any():
        return np.ascontiguousarray(scaled, np.float32), places
    missing = places < 0
    first = np.where(missing[:, :1], np.float32(0.0), scaled[:, :1])
    start = np.where(missing[:, :1], 0, places[:, :1])
    scaled = np.where(missing, first + np.float32(FORBIDDEN), scaled)
    return np.ascontiguousarray(scaled, np.float32), np.where(missing, start, places).astype(np.int32)


@njit(cache=True, fastmath={"nnan", "nsz", "contract", "reassoc", "arcp"}, error_model="numpy")
def update(
    costs: NDArray[Any],
    places: NDArray[Any],
    dual: NDArray[Any],
    other: NDArray[Any],
    state: NDArray[Any],
    other_state: NDArray[Any],
    highest: float,
    beta: NDArray[Any],
    bid: float,
    relaxation: float,
    say: NDArray[Any],
    say_bias: NDArray[Any],
    inner: NDArray[Any],
    inner_bias: NDArray[Any],
    outer: NDArray[Any],
    outer_bias: NDArray[Any],
    step: NDArray[Any],
    step_bias: NDArray[Any],
) -> None:
    """Give the nodes of one side new duals [n] and states [n, H], in place; no dual above `highest`."""
    num_nodes, width = costs.shape
    num_other, hidden = other_state.shape
    heads = len(beta)
    num_inner = len(inner_bias)
    num_plain = 3 * heads + 2
    said = np.empty((num_other, 2 * heads), np.float32)
    for j in range(num_other):
        for head in range(2 * heads):
            said[j, head] = say_bias[head]
        for feature in range(hidden):
            value = other_state[j, feature]
            for head in range(2 * heads):
                said[j, head] += value * say[feature, head]
    heard = np.empty((2 * heads, width), np.float32)
    above = np.empty(width, np.float32)
    weights = np.empty(width, np.float32)
    plain = np.empty(num_plain, np.float32)
    activity = np.empty(num_inner, np.float32)
    steps = np.empty(heads, np.float32)
    for i in range(num_nodes):
        least = second = np.float32(np.inf)
        for place in range(width):
            j = places[i, place]
            value = costs[i, place] - other[j]
            above[place] = value
            for head in range(2 * heads):
                heard[head, place] = said[j, head]
            if value < least:
                second = least
                least = value
            elif value < second:
                second = value
        for place in range(width):
            above[place] -= least
        gap = min(second - least, _WIDEST)
        for head in range(heads):
            sharp = beta[head]
            peak = np.float32(-np.inf)
            for place in range(width):
                value = heard[head, place] - sharp * above[place]
                weights[place] = value
                peak = max(peak, value)
            total = mean = message = np.float32(0.0)
            for place in range(width):
                x = max(weights[place] - peak, _LOWEST) * _STEPS
                power = np.float32(1.0 / 120.0) + x * np.float32(1.0 / 720.0)
                power = np.float32(1.0 / 24.0) + x * power
                power = np.float32(1.0 / 6.0) + x * power
                power = np.float32(0.5) + x * power
                power = np.float32(1.0) + x * power
                power = np.float32(1.0) + x * power
                power *= power
                power *= power
                power *= power
                power *= power
                power *= power
                power *= power
                total += power
                mean += power * above[place]
                message += power * heard[heads + head, place]
            plain[head] = np.log(total) + peak
            plain[heads + head] = mean / total * sharp
            plain[2 * heads + head] = message / total
        plain[3 * heads] = min(_SHARPNESS * gap, _FEATURE_LIMIT)
        plain[3 * heads + 1] = min(max(_SHARPNESS * (dual[i] - least), -_FEATURE_LIMIT), _FEATURE_LIMIT)
        for unit in range(num_inner):
            activity[unit] = inner_bias[unit]
        for feature in range(hidden):
            value = state[i, feature]
            for unit in range(num_inner):
                activity[unit] += value * inner[feature, unit]
        for feature in range(num_plain):
            value = plain[feature]
            for unit in range(num_inner):
                activity[unit] += value * inner[hidden + feature, unit]
        for head in range(heads):
            steps[head] = step_bias[head]
        for unit in range(num_inner):
            value = max(activity[unit], np.float32(0.0))
            for head in range(heads):
                steps[head] += value * step[unit, head]
            for feature in range(hidden):
                state[i, feature] += value * outer[unit, feature]
        for feature in range(hidden):
            state[i, feature] += outer_bias[feature]
        for feature in range(num_plain):
            value = plain[feature]
            for head in range(heads):
                steps[head] += value * step[num_inner + feature, head]
        change = np.float32(0.0)
        for head in range(heads):
            change += steps[head] / beta[head]
        dual[i] = min(dual[i] + relaxation * (least + bid * gap + change - dual[i]), np.float32(highest))


@njit(cache=True)
def least_reduced(costs: NDArray[Any], places: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float32]:
    """Return the minimum of c - other over each list, [n]."""
    least = np.full(len(costs), np.float32(np.inf), np.float32)
    for i in range(len(costs)):
        for place in range(costs.shape[1]):
            least[i] = min(least[i], costs[i, place] - other[places[i, place]])
    return least
