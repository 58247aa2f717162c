"""River networks from lines of a map (GeoJSON, shapefile): rooted at their outlets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components
from scipy.spatial import cKDTree

from kdgat.trees.reading import ReadError
from kdgat.trees.reading.graphs import SpaceGraph, grow_trees, unique_edges
from kdgat.trees.reading.result import ReadTree

TOLERANCE = 1e-6
"""Of the map's extent: two ends nearer than that are one. 10 cm on a catchment of 100 km."""
EARTH_RADIUS_M = 6_371_008.8
GEOGRAPHIC = ("EPSG:4326", "EPSG:4269", "EPSG:4258", "OGC:CRS84", "GEOGCRS", "GEOGCS", "GEODCRS")
FARTHEST = 1e12
"""Coordinates beyond are of no map, and overflow where distances are squared."""


def read_rivers(
    path: Path | str, tolerance: float | None = None, generators: Sequence[np.random.Generator] = ()
) -> list[ReadTree]:
    """Read the lines of a file as one tree for each connected network, rooted where the water leaves it.

    All vertices are nodes (`contract` keeps confluences, sources and the outlet). Degrees become metres around the
    middle of the map; heights are kept where lines have them. Lines are taken to run downstream: the outlet is the node
    that no line leaves, of several the one with most river above it. Braids are cut where they are farthest from it, or
    at random.

    Args:
        path: the file; its stem names the trees.
        tolerance: ends of lines nearer to each other than this, in the map's unit (metres for degrees), are one;
            None: a millionth of the map's extent.
        generators: one for each random spanning tree of a network with braids; none: shortest paths to the outlet.

    Returns:
        The trees, the one with most nodes first.

    Raises:
        ReadError: if the file cannot be opened or holds no line.
    """
    path = Path(path)
    position, start, end, notes = _read_lines(path)
    unique, node = np.unique(position, axis=0, return_inverse=True)
    node = node.ravel()
    node = _snap_ends(unique, node, start, end, tolerance)
    inner = np.ones(len(node), bool)
    inner[end] = False
    above, below = node[inner], node[np.append(False, inner[:-1])]
    used, compact = np.unique(np.concatenate([above, below]), return_inverse=True)
    flow = compact.reshape(2, -1).T  # each piece of a line, from its upper to its lower node
    flow = flow[flow[:, 0] != flow[:, 1]]
    if not len(flow):
        raise ReadError(path, "its lines have no length")
    graph = SpaceGraph(unique[used], unique_edges(flow), np.zeros(len(used)))
    outlet, choices = _find_outlets(graph, flow)

    def find_root(nodes: NDArray[np.int64]) -> tuple[int, list[str]]:
        chosen = f"{choices[nodes[0]]} ends that no line leaves: rooted at the one with most river above it"
        return int(outlet[nodes[0]]), [*notes, *([chosen] if choices[nodes[0]] > 1 else [])]

    trees, _ = grow_trees(graph, find_root, path.stem, generators=generators)
    return trees


def _read_lines(path: Path) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64], list[str]]:
    """Return vertices [V, 3] of all lines, the first and the last one of each line, and notes."""
    import pyogrio
    import shapely

    try:
        meta, _, geometry, _ = pyogrio.raw.read(path, columns=[])
        shapes = shapely.from_wkb(geometry)
    except FileNotFoundError:
        raise ReadError(path, "no such file") from None
    except Exception as error:  # whatever pyogrio meets between GDAL and Python: names that are no UTF-8, too
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ReadError(path, f"cannot be opened as a map of lines ({reason}): export it again") from error
    parts = shapely.get_parts(shapes[~(shapely.is_missing(shapes) | shapely.is_empty(shapes))])
    is_line = np.isin(shapely.get_type_id(parts), (1, 2))  # LineString, LinearRing
    notes = [f"{int((~is_line).sum())} shapes that are no lines left out"] if not is_line.all() else []
    lines = parts[is_line]
    if not len(lines):
        raise ReadError(path, f"holds {len(shapes)} shapes and no line: give the flowlines")
    position, line = shapely.get_coordinates(lines, include_z=True, return_index=True)
    position[np.isnan(position[:, 2]), 2] = 0.0
    is_usable = (np.abs(position) <= FARTHEST).all(axis=1)  # of what is not a number, too
    if not is_usable.all():
        raise ReadError(
            path, f"line {int(line[~is_usable][0]) + 1} has a vertex that is not finite, or farther than {FARTHEST:g}"
        )
    if str(meta["crs"] or "").upper().startswith(GEOGRAPHIC) and (np.abs(position[:, :2]) <= (360, 90)).all():
        position = _to_metres(position)
        notes.append("degrees turned into metres around the middle of the map")
    start = np.append(0, np.flatnonzero(np.diff(line)) + 1)
    end = np.append(start[1:] - 1, len(line) - 1)
    return position, start, end, notes


def _to_metres(position: NDArray[np.float64]) -> NDArray[np.float64]:
    """Unroll longitude and latitude on the cylinder that is true at the middle latitude; heights stay."""
    middle = (position[:, :2].min(axis=0) + position[:, :2].max(axis=0)) / 2
    offset = np.radians(position[:, :2] - middle) * EARTH_RADIUS_M
    return np.column_stack([offset[:, 0] * np.cos(np.radians(middle[1])), offset[:, 1], position[:, 2]])


def _snap_ends(
    unique: NDArray[np.float64],
    node: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    tolerance: float | None,
) -> NDArray[np.int64]:
    """Return the node of each vertex, with ends of lines that lie near each other made one."""
    extent = float(np.linalg.norm(unique.max(axis=0) - unique.min(axis=0)))
    ends = np.unique(node[np.concatenate([start, end])])
    near = cKDTree(unique[ends]).query_pairs(
        TOLERANCE * extent if tolerance is None else tolerance, output_type="ndarray"
    )
    pairs = coo_array((np.ones(len(near)), (near[:, 0], near[:, 1])), shape=(len(ends), len(ends)))
    _, group = connected_components(pairs, directed=False)
    _, first = np.unique(group, return_index=True)
    target = np.arange(len(unique))
    target[ends] = ends[first[group]]
    return target[node]


def _find_outlets(graph: SpaceGraph, flow: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each node the outlet of its component [N], and how many there were to choose from [N].

    An outlet is a node, or one of a circle of flow, that no flow leaves; every component has one.
    """
    count = len(graph.position)
    down = csr_array((np.ones(len(flow)), (flow[:, 0], flow[:, 1])), shape=(count, count))
    num_circles, circle = connected_components(down, directed=True, connection="strong")
    leaves = np.zeros(num_circles, bool)
    crossing = circle[flow[:, 0]] != circle[flow[:, 1]]
    leaves[circle[flow[crossing, 0]]] = True
    _, representative = np.unique(circle, return_index=True)
    candidates = representative[~leaves]
    num_parts, part = graph.components()
    choices = np.bincount(part[candidates], minlength=num_parts)
    begins = np.zeros(count)  # length of river from a node to the next
    np.add.at(begins, flow[:, 0], np.linalg.norm(graph.position[flow[:, 0]] - graph.position[flow[:, 1]], axis=1))
    outlet, most = np.full(num_parts, -1), np.full(num_parts, -1.0)
    up = down.T.tocsr()
    for node in candidates:
        # A walk upstream costs as much as the river is long: only where there is a choice.
        above = breadth_first_order(up, node, return_predecessors=False) if choices[part[node]] > 1 else [node]
        length = begins[above].sum()
        if length > most[part[node]]:
            outlet[part[node]], most[part[node]] = node, length
    return outlet[part], choices[part]
