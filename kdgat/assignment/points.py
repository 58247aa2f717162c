"""Costs that are distances between points: none is stored, and the best columns of a row are found in a k-d tree.

A column j is the better for a row at p, the less d(p, q_j) - v_j is. Every node of the tree knows the box of its points
and their largest v, so d(p, box) - max v is below that for all of them; it is so for rounded numbers, too, because both
are made by the same steps, each of which keeps order. Source of the search in a tree: Friedman, Bentley, Finkel 1977.
"""

import numpy as np
from numpy.typing import NDArray

from kdgat.assignment.rows import LANES, ORDERED
from kdgat.base.machine_code import compiled

METRICS = ("euclidean", "sqeuclidean", "cityblock", "chebyshev")
LEAF = 12  # points in a leaf, about


@compiled
def box_distance(p, low, high, metric):  # type: ignore[no-untyped-def]
    """Return the distance of a point to a box, or to another point: low = high."""
    total = 0.0
    for c in range(p.size):
        difference = max(low[c] - p[c], p[c] - high[c])
        difference = max(difference, 0.0)
        if metric <= 1:
            total += difference * difference
        elif metric == 2:
            total += difference
        else:
            total = max(total, difference)
    return np.sqrt(total) if metric == 0 else total


@compiled
def nearest(points, rows, targets, order, first, low, high, largest, v, metric, columns, costs, count, beyond):  # type: ignore[no-untyped-def]
    """Write the k = columns.shape[1] columns with least d - v of points[rows] to row r of `columns` and `costs`.

    `targets`, in the order of the leaves, are the columns order[...]; leaf l has those from first[l] to first[l + 1].
    `largest` is v's maximum of each node, or more. beyond[r] is the k-th least d - v.
    """
    k = columns.shape[1]
    num_leaves = first.size - 1
    value_of = np.empty(k)
    stack, bound_of = np.empty(128, np.int64), np.empty(128)
    for r in range(rows.size):
        p = points[rows[r]]
        found = 0
        worst = np.inf
        depth = 1
        stack[0], bound_of[0] = 1, -np.inf
        while depth > 0:
            depth -= 1
            node = stack[depth]
            if bound_of[depth] >= worst:
                continue
            if node < num_leaves:
                left = box_distance(p, low[2 * node], high[2 * node], metric) - largest[2 * node]
                right = box_distance(p, low[2 * node + 1], high[2 * node + 1], metric) - largest[2 * node + 1]
                nearer = 0 if left <= right else 1
                stack[depth], bound_of[depth] = 2 * node + 1 - nearer, max(left, right)
                stack[depth + 1], bound_of[depth + 1] = 2 * node + nearer, min(left, right)
                depth += 2
                continue
            leaf = node - num_leaves
            for t in range(first[leaf], first[leaf + 1]):
                distance = box_distance(p, targets[t], targets[t], metric)
                value = distance - v[order[t]]
                if value < worst:
                    place = found if found < k else k - 1
                    while place > 0 and value_of[place - 1] > value:
                        if place < k:
                            value_of[place] = value_of[place - 1]
                            columns[r, place] = columns[r, place - 1]
                            costs[r, place] = costs[r, place - 1]
                        place -= 1
                    value_of[place] = value
                    columns[r, place] = order[t]
                    costs[r, place] = distance
                    found = min(found + 1, k)
                    if found == k:
                        worst = value_of[k - 1]
        count[r] = found
        beyond[r] = worst


@compiled(fastmath=ORDERED)
def all_distances(p, targets, metric, out):  # type: ignore[no-untyped-def]
    """Write the distances of a point to all targets [d, m] to `out` [m]."""
    out[:] = 0.0
    for c in range(p.size):
        coordinate, at = targets[c], p[c]
        if metric <= 1:
            for j in range(out.size):
                difference = coordinate[j] - at
                out[j] += difference * difference
        elif metric == 2:
            for j in range(out.size):
                out[j] += abs(coordinate[j] - at)
        else:
            for j in range(out.size):
                out[j] = max(out[j], abs(coordinate[j] - at))
    if metric == 0:
        for j in range(out.size):
            out[j] = np.sqrt(out[j])


@compiled(fastmath=ORDERED)
def point_slacks(points, targets, v, metric, slack):  # type: ignore[no-untyped-def]
    """Write min_j(d_ij - v_j) of every point to `slack`, from all distances to all targets [d, m], one by one."""
    m = v.size
    block = 32 * LANES  # near the processor
    distance, lane = np.empty(block), np.empty(LANES)
    for i in range(points.shape[0]):
        p = points[i]
        lane[:] = np.inf
        for begin in range(0, m, block):
            stop = min(begin + block, m)
            part = distance[: stop - begin]
            all_distances(p, targets[:, begin:stop], metric, part)
            weight = v[begin:stop]
            full = part.size - part.size % LANES
            for at in range(0, full, LANES):
                for k in range(LANES):
                    value = part[at + k] - weight[at + k]
                    lane[k] = value if value < lane[k] else lane[k]
            for j in range(full, part.size):
                lane[j - full] = min(lane[j - full], part[j] - weight[j])
        smallest = np.inf
        for k in range(LANES):
            smallest = min(smallest, lane[k])
        slack[i] = smallest


class PointCosts:
    """Distances between points as costs [n, m], n <= m: rows `a` [n, d], columns `b` [m, d]."""

    def __init__(self, a: NDArray[np.float64], b: NDArray[np.float64], metric: int) -> None:
        """Make the tree of the columns' points."""
        self.a, self.metric = a, metric
        self.shape = (a.shape[0], b.shape[0])
        self.transposed = np.ascontiguousarray(b.T)
        num_leaves = 1
        while num_leaves * LEAF < b.shape[0]:
            num_leaves *= 2
        parts = [np.arange(b.shape[0])]
        while len(parts) < num_leaves:
            parts = [half for part in parts for half in _halves(part, b)]
        self.order = np.concatenate(parts)
        self.first = np.concatenate([[0], np.cumsum([part.size for part in parts])])
        self.targets = b[self.order]
        low, high = np.empty((2 * num_leaves, b.shape[1])), np.empty((2 * num_leaves, b.shape[1]))
        low[num_leaves:] = np.minimum.reduceat(self.targets, self.first[:-1], axis=0)
        high[num_leaves:] = np.maximum.reduceat(self.targets, self.first[:-1], axis=0)
        for node in range(num_leaves - 1, 0, -1):
            low[node], high[node] = low[2 * node : 2 * node + 2].min(0), high[2 * node : 2 * node + 2].max(0)
        self.low, self.high = low, high
        self.largest = np.full(2 * num_leaves, np.inf)

    def refresh(self, v: NDArray[np.float64]) -> None:
        """Take note of duals: searches are quicker, and right with older ones, which are larger."""
        num_leaves = self.first.size - 1
        values = np.maximum.reduceat(v[self.order], self.first[:-1])
        self.largest[num_leaves:] = values
        while num_leaves > 1:
            values = values.reshape(-1, 2).max(1)
            num_leaves //= 2
            self.largest[num_leaves : 2 * num_leaves] = values

    def nearest(self, rows: NDArray[np.int64], v: NDArray[np.float64], size: int) -> tuple[NDArray, ...]:  # type: ignore[type-arg]
        """Return columns and costs [r, size] of entries with least C_ij - v_j, how many, and the bound on others."""
        k = min(size, self.shape[1])
        found = (
            np.zeros((rows.size, k), np.int32),
            np.zeros((rows.size, k)),
            np.empty(rows.size, np.int64),
            np.empty(rows.size),
        )
        nearest(
            self.a,
            rows,
            self.targets,
            self.order,
            self.first,
            self.low,
            self.high,
            self.largest,
            v,
            self.metric,
            *found,
        )
        if k == self.shape[1]:
            found[3][:] = np.inf
        return found

    def row(self, i: int, out: NDArray[np.float64]) -> None:
        """Write all costs of a row to `out` [m]."""
        all_distances(self.a[i], self.transposed, self.metric, out)

    def check(self, v: NDArray[np.float64], column_of: NDArray[np.int64]) -> tuple[NDArray, NDArray]:  # type: ignore[type-arg]
        """Return min_j(C_ij - v_j) of every row and its matched cost [n], from every entry."""
        slack, paid = np.empty(self.shape[0]), np.empty(self.shape[0])
        point_slacks(self.a, self.transposed, v, self.metric, slack)
        for i in range(paid.size):
            j = int(column_of[i])
            all_distances(self.a[i], self.transposed[:, j : j + 1], self.metric, paid[i : i + 1])
        return slack, paid


def _halves(part: NDArray[np.int64], b: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide points at the median of their widest coordinate."""
    values = b[part]
    widest = int((values.max(0) - values.min(0)).argmax())
    order = part[np.argsort(values[:, widest], kind="stable")]
    return order[: (part.size + 1) // 2], order[(part.size + 1) // 2 :]
