"""Small assignment problems with labels, as graphs and as stores."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kdgat.assignment import solve
from kdgat.graphs import GraphColumns, write_store
from kdgat.lap.graphs.bipartite import EDGE_FEATURES, NODE_FEATURES, SCHEMA, build_graph
from kdgat.lap.sections import GraphConfig

GRAPH = GraphConfig(row_neighbours=6, column_neighbours=5)


def problem(
    rows: int, columns: int, seed: int, forbidden: float = 0.0
) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
    """Return costs [n, m] and, where some are forbidden, a mask that leaves the diagonal allowed."""
    generator = np.random.default_rng([seed, rows, columns])
    cost = generator.random((rows, columns))
    if forbidden == 0.0:
        return cost, None
    mask = generator.random((rows, columns)) < forbidden
    np.fill_diagonal(mask, False)
    return cost, mask


def labelled_graph(size: int, seed: int, forbidden: float = 0.0, config: GraphConfig = GRAPH) -> GraphColumns:
    """Return the graph of a square problem with the duals of the solver."""
    cost, mask = problem(size, size, seed, forbidden)
    solved = solve(cost, mask=mask, method="core")
    return build_graph(cost, mask, solved.u, solved.v, config)


def write_graphs(path: Path, sizes: list[int], first_seed: int) -> Path:
    """Write a store of labelled graphs of these sizes."""
    write_store(
        path,
        SCHEMA,
        [labelled_graph(size, first_seed + place, 0.3 * (place % 2)) for place, size in enumerate(sizes)],
        node_features=NODE_FEATURES,
        edge_features=EDGE_FEATURES,
        build={},
    )
    return path
