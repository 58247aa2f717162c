"""The dual network compiled for one CPU core: the arithmetic of `kdgat.lap.models.dual`, a block of nodes at a time.

All that a block needs stays in the first cache, and every innermost loop runs over its nodes: a vector operation.
PyTorch would write each of some twenty intermediate arrays to memory. Results agree with its to rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import compiled
from kdgat.lap.graphs.bipartite import Neighbours
from kdgat.lap.models.dual import FORBIDDEN, LOWEST, SHARPNESS, STEEPEST, WIDEST, DualNetwork, Phase, Sweep

_LANES = 128  # nodes of a block
_FEATURE_LIMIT = np.float32(8.0)
_WIDEST, _SHARPNESS, _LOWEST = np.float32(WIDEST), np.float32(SHARPNESS), np.float32(LOWEST)
# exp(x) = p(x / 64)^64 on [LOWEST, 0], p the Taylor polynomial of degree 6: a vector operation without a library.
_PART = np.float32(1.0 / 64.0)


class CompiledNetwork:
    """Hold the weights of a dual network as arrays."""

    def __init__(self, model: DualNetwork) -> None:
        self.hidden = model.config.hidden
        sweeps = zip(model.row_sweeps, model.column_sweeps, strict=True)
        self.sweeps = [(_sweep_weights(row), _sweep_weights(column)) for row, column in sweeps]
        phases = zip(model.row_phases, model.column_phases, strict=True)
        self.rounds = [(_weights(row), _weights(column)) for row, column in phases]

    def __call__(self, found: Neighbours) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return normalised duals: u [n], the least reduced cost of each row, and v [m]."""
        unit = found.scaling.unit
        row_lists = _blocks(found.row_costs, found.row_columns, unit)
        column_lists = _blocks(found.column_costs, found.column_rows, unit)
        num_rows, num_columns = len(found.row_costs), len(found.column_costs)
        padded_rows, padded_columns = row_lists[0].shape[1], column_lists[0].shape[1]
        u, v = np.zeros(padded_rows, np.float32), np.zeros(padded_columns, np.float32)
        rows = np.zeros((self.hidden, padded_rows), np.float32)
        columns = np.zeros((self.hidden, padded_columns), np.float32)
        highest = np.float32(np.inf if num_rows == num_columns else 0.0)
        for row_sweep, column_sweep in self.sweeps:
            sweep(*row_lists, u, v, np.float32(np.inf), *row_sweep)
            sweep(*column_lists, v, u, highest, *column_sweep)
        for row_weights, column_weights in self.rounds:
            update(*row_lists, u, v, rows, columns, np.float32(np.inf), *row_weights)
            update(*column_lists, v, u, columns, rows, highest, *column_weights)
        return least_reduced(*row_lists, *column_lists, v, num_columns)[:num_rows], v[:num_columns]


def _sweep_weights(module: Any) -> tuple[np.float32, np.float32]:
    assert isinstance(module, Sweep)
    return np.float32(module.log_beta.exp().item()), np.float32(min(module.relaxation.item(), STEEPEST))


def _weights(phase: Any) -> tuple[Any, ...]:
    """Return the parameters of a phase in the order in which `update` takes them."""
    assert isinstance(phase, Phase)

    def array(parameter: Any) -> NDArray[np.float32]:
        return np.ascontiguousarray(parameter.detach().cpu().numpy(), np.float32)

    layers = (phase.say, phase.inner, phase.outer, phase.step)
    arrays = [array(parameter) for layer in layers for parameter in (layer.weight, layer.bias)]
    return array(phase.log_beta.exp()), np.float32(phase.bid.item()), *arrays


def _blocks(
    costs: NDArray[np.float32], places: NDArray[np.int32], unit: float
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Return normalised costs and places of lists, [R, N]: N filled up to whole blocks, missing edges far away."""
    count, width = costs.shape
    padded = -(-count // _LANES) * _LANES
    all_costs, all_places = np.zeros((width, padded), np.float32), np.zeros((width, padded), np.int32)
    with np.errstate(invalid="ignore"):  # 0 * inf: of a missing edge, which is replaced below
        scaled = costs.T * np.float32(1.0 / unit if unit > 0.0 else 0.0)
    all_places[:, :count] = places.T
    if places[:, -1].min(initial=0) < 0:  # lists rise: what is missing stands last
        missing = places.T < 0
        first = np.where(missing[0], np.float32(0.0), scaled[0])
        scaled = np.where(missing, first + np.float32(FORBIDDEN), scaled)
        all_places[:, :count] = np.where(missing, np.maximum(places.T[0], 0), places.T)
    all_costs[:, :count] = scaled
    return all_costs, all_places


@compiled(fastmath={"nnan", "nsz", "contract", "reassoc", "arcp"}, error_model="numpy")
def update(
    costs: NDArray[Any],
    places: NDArray[Any],
    dual: NDArray[Any],
    other: NDArray[Any],
    state: NDArray[Any],
    other_state: NDArray[Any],
    highest: Any,
    beta: NDArray[Any],
    bid: Any,
    say: NDArray[Any],
    say_bias: NDArray[Any],
    inner: NDArray[Any],
    inner_bias: NDArray[Any],
    outer: NDArray[Any],
    outer_bias: NDArray[Any],
    step: NDArray[Any],
    step_bias: NDArray[Any],
) -> None:
    """Give the nodes of one side new duals [N] and states [H, N], in place; no dual above `highest`."""
    width, num_nodes = costs.shape
    hidden, num_other = other_state.shape
    heads = len(beta)
    num_inner, num_plain = len(inner_bias), 3 * heads + 2
    num_steps = num_inner + num_plain
    messages = np.empty((2 * heads, num_other), np.float32)
    for head in range(2 * heads):
        for j in range(num_other):
            messages[head, j] = say_bias[head]
        for feature in range(hidden):
            weight = say[head, feature]
            for j in range(num_other):
                messages[head, j] += weight * other_state[feature, j]
    above = np.empty((width, _LANES), np.float32)
    exponents = np.empty((width, _LANES), np.float32)
    values = np.empty((width, _LANES), np.float32)
    features = np.empty((num_steps, _LANES), np.float32)  # the inner layer, then what it reads beside the state
    least, second = np.empty(_LANES, np.float32), np.empty(_LANES, np.float32)
    peak, total = np.empty(_LANES, np.float32), np.empty(_LANES, np.float32)
    mean, message = np.empty(_LANES, np.float32), np.empty(_LANES, np.float32)
    for start in range(0, num_nodes, _LANES):
        for lane in range(_LANES):
            least[lane] = np.inf
            second[lane] = np.inf
        for place in range(width):
            for lane in range(_LANES):
                value = costs[place, start + lane] - other[places[place, start + lane]]
                above[place, lane] = value
                second[lane] = min(second[lane], max(least[lane], value))
                least[lane] = min(least[lane], value)
        for place in range(width):
            for lane in range(_LANES):
                above[place, lane] -= least[lane]
        for head in range(heads):
            sharp = beta[head]
            for lane in range(_LANES):
                peak[lane] = -np.inf
                total[lane] = 0.0
                mean[lane] = 0.0
                message[lane] = 0.0
            for place in range(width):
                for lane in range(_LANES):
                    j = places[place, start + lane]
                    score = messages[head, j] - sharp * above[place, lane]
                    values[place, lane] = messages[heads + head, j]
                    exponents[place, lane] = score
                    peak[lane] = max(peak[lane], score)
            for place in range(width):
                for lane in range(_LANES):
                    x = max(exponents[place, lane] - peak[lane], _LOWEST) * _PART
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
                    total[lane] += power
                    mean[lane] += power * above[place, lane]
                    message[lane] += power * values[place, lane]
            for lane in range(_LANES):
                features[num_inner + head, lane] = np.log(total[lane]) + peak[lane]
                features[num_inner + heads + head, lane] = mean[lane] / total[lane] * sharp
                features[num_inner + 2 * heads + head, lane] = message[lane] / total[lane]
        for lane in range(_LANES):
            second[lane] = min(second[lane] - least[lane], _WIDEST)
            own = _SHARPNESS * (dual[start + lane] - least[lane])
            features[num_steps - 2, lane] = min(_SHARPNESS * second[lane], _FEATURE_LIMIT)
            features[num_steps - 1, lane] = min(max(own, -_FEATURE_LIMIT), _FEATURE_LIMIT)
        for unit in range(num_inner):
            for lane in range(_LANES):
                features[unit, lane] = inner_bias[unit]
            for feature in range(hidden):
                weight = inner[unit, feature]
                for lane in range(_LANES):
                    features[unit, lane] += weight * state[feature, start + lane]
            for feature in range(num_plain):
                weight = inner[unit, hidden + feature]
                for lane in range(_LANES):
                    features[unit, lane] += weight * features[num_inner + feature, lane]
            for lane in range(_LANES):
                features[unit, lane] = max(features[unit, lane], np.float32(0.0))
        for feature in range(hidden):
            for unit in range(num_inner):
                weight = outer[feature, unit]
                for lane in range(_LANES):
                    state[feature, start + lane] += weight * features[unit, lane]
            for lane in range(_LANES):
                state[feature, start + lane] += outer_bias[feature]
        for lane in range(_LANES):
            total[lane] = least[lane] + bid * second[lane]
        for feature in range(num_steps):
            weight = np.float32(0.0)
            for head in range(heads):
                weight += step[head, feature] / beta[head]
            for lane in range(_LANES):
                total[lane] += weight * features[feature, lane]
        bias = np.float32(0.0)
        for head in range(heads):
            bias += step_bias[head] / beta[head]
        for lane in range(_LANES):
            dual[start + lane] = min(total[lane] + bias, highest)


@compiled(fastmath={"nnan", "nsz", "contract", "reassoc", "arcp"}, error_model="numpy")
def sweep(
    costs: NDArray[Any],
    places: NDArray[Any],
    dual: NDArray[Any],
    other: NDArray[Any],
    highest: Any,
    beta: Any,
    relaxation: Any,
) -> None:
    """Give the nodes of one side new duals [N] by a step of Sinkhorn's iteration, in place; none above `highest`."""
    width, num_nodes = costs.shape
    reduced = np.empty((width, _LANES), np.float32)
    least, total = np.empty(_LANES, np.float32), np.empty(_LANES, np.float32)
    for start in range(0, num_nodes, _LANES):
        for lane in range(_LANES):
            least[lane] = np.inf
            total[lane] = 0.0
        for place in range(width):
            for lane in range(_LANES):
                reduced[place, lane] = costs[place, start + lane] - other[places[place, start + lane]]
                least[lane] = min(least[lane], reduced[place, lane])
        for place in range(width):
            for lane in range(_LANES):
                x = max(beta * (least[lane] - reduced[place, lane]), _LOWEST) * _PART
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
                total[lane] += power
        for lane in range(_LANES):
            old = dual[start + lane]
            dual[start + lane] = min(old + relaxation * (least[lane] - np.log(total[lane]) / beta - old), highest)


@compiled
def least_reduced(
    costs: NDArray[Any],
    places: NDArray[Any],
    column_costs: NDArray[Any],
    column_places: NDArray[Any],
    v: NDArray[Any],
    num_columns: int,
) -> NDArray[np.float32]:
    """Return the least c - v of each row, [N], over its own list and the lists of the first `num_columns` columns."""
    width, count = costs.shape
    least = np.full(count, np.float32(np.inf), np.float32)
    for place in range(width):
        for i in range(count):
            least[i] = min(least[i], costs[place, i] - v[places[place, i]])
    for place in range(column_costs.shape[0]):
        for j in range(num_columns):
            i = column_places[place, j]
            least[i] = min(least[i], column_costs[place, j] - v[j])
    return least
