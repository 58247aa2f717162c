"""Vessels, roots and cracks as binary masks: their skeleton, pixel by pixel, as rooted trees with radii."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt
from scipy.sparse import coo_array

from kdgat.base.memory import require_memory
from kdgat.trees.reading import ReadError
from kdgat.trees.reading.graphs import SpaceGraph, grow_trees
from kdgat.trees.reading.result import ReadTree
from kdgat.trees.structure.tree import Tree, contract

MaskRoot = Literal["widest", "centre"]
MAX_PAGES = 4096
"""Of a stack of images."""
PAGE_BYTES = 32
"""No page of a TIFF takes less."""
MIN_NODES = 8
"""Smaller skeletons are specks: a vessel is longer than that many pixels."""


def read_mask(
    path: Path | str, root: MaskRoot = "widest", generators: Sequence[np.random.Generator] = ()
) -> list[ReadTree]:
    """Read a binary mask (PNG, TIFF or npy; TIFF and npy also with three axes) as one tree for each component.

    Positions are (column, row, plane) in pixels, radii distances to the background. Loops of vessels are cut where they
    are farthest from the root, or at random; spurs no longer than the vessel's radius where they begin are cut, for
    they lie in it.

    Args:
        path: the file; its stem names the trees.
        root: the pixel of the largest radius of a component, or the one nearest to the middle of the mask.
        generators: one for each random spanning tree of a skeleton with loops; none: shortest paths to the root.

    Returns:
        The trees, the one with most nodes first.

    Raises:
        ReadError: if it is no mask of two values, or nothing of it is left as skeleton.
    """
    path = Path(path)
    mask = _read_pixels(path)
    graph = skeleton_graph(mask)
    middle = (np.array(mask.shape[::-1]) - 1) / 2

    def find_root(nodes: NDArray[np.int64]) -> tuple[int, tuple[str, ...]]:
        if root == "widest":
            return int(nodes[graph.radius[nodes].argmax()]), ()
        return int(nodes[np.linalg.norm(graph.position[nodes, : mask.ndim] - middle, axis=1).argmin()]), ()

    trees, left_out = grow_trees(graph, find_root, path.stem, MIN_NODES, generators)
    if not trees:
        raise ReadError(path, f"no skeleton of {MIN_NODES} pixels or more: is the foreground the larger value?")
    trees = [_prune_all(read) for read in trees]
    if left_out:
        specks = f"{left_out} specks below {MIN_NODES} pixels left out"
        trees[0] = replace(trees[0], notes=(*trees[0].notes, specks))
    return trees


def skeleton_graph(mask: NDArray[np.bool_]) -> SpaceGraph:
    """Return the pixels of a mask's skeleton, joined with their neighbours, corners included.

    A pair is not joined where a path of shorter steps joins it: corners would else be small triangles.

    Args:
        mask: [rows, columns] or [planes, rows, columns].
    """
    from skimage.morphology import skeletonize

    padded = np.pad(mask, 1)
    place = np.argwhere(skeletonize(padded))  # type: ignore[no-untyped-call]
    index = np.full(padded.shape, -1)
    index[tuple(place.T)] = np.arange(len(place))
    steps = [step for step in product((-1, 0, 1), repeat=mask.ndim) if step > (0,) * mask.ndim]
    by_size: dict[int, list[NDArray[np.int64]]] = {}
    for step in steps:
        neighbour = index[tuple((place + step).T)]
        from_nodes = np.flatnonzero(neighbour >= 0)
        size = sum(map(abs, step))
        by_size.setdefault(size, []).append(np.column_stack([from_nodes, neighbour[from_nodes]]))
    ends = np.zeros((0, 2), np.int64)
    for size in sorted(by_size):
        pairs = np.concatenate(by_size[size])
        shorter = coo_array((np.ones(len(ends)), tuple(ends.T)), shape=(len(place), len(place))).tocsr()
        shorter = shorter + shorter.T
        detour = (shorter @ shorter).tocsr()
        pairs = pairs[np.asarray(detour[pairs[:, 0], pairs[:, 1]]).ravel() == 0] if len(pairs) else pairs
        ends = np.concatenate([ends, pairs])
    position = np.zeros((len(place), 3))
    position[:, : mask.ndim] = (place - 1)[:, ::-1]
    radius = distance_transform_edt(padded)[tuple(place.T)]
    return SpaceGraph(position, ends, radius)


def _prune_all(read: ReadTree) -> ReadTree:
    pruned, counts = zip(*(_prune(tree) for tree in read.trees), strict=True)
    notes = [f"{sum(counts)} spurs no longer than the vessel's radius cut"] if any(counts) else []
    return replace(read, tree=pruned[0], notes=(*read.notes, *notes), others=pruned[1:])


def _prune(tree: Tree) -> tuple[Tree, int]:
    """Cut ends that do not leave the vessel from which they branch, and count them.

    Once, for what remains may branch no more there.
    """
    short = contract(tree)
    is_spur = (short.num_children == 0) & (short.length <= short.radius[short.parent]) & (short.parent >= 0)
    ends = np.append(0, np.flatnonzero(tree.num_children[1:] != 1) + 1)  # in the tree, of the short one's nodes
    kept = ~is_spur[np.searchsorted(ends, np.arange(tree.num_nodes))]
    if kept.all() or kept.sum() < 2:
        return tree, 0
    place = np.cumsum(kept) - 1
    parent = np.where(tree.parent >= 0, place[tree.parent], -1)[kept]
    pruned = Tree.from_parents(
        parent, tree.position[kept], tree.radius[kept], tree.kind[kept], tree.length[kept], tree.name
    )
    return pruned, int(is_spur.sum())


def _read_pixels(path: Path) -> NDArray[np.bool_]:
    """Return True where the mask has the larger of its two values."""
    from skimage.io import imread

    try:
        pixels = _READERS.get(path.suffix.lower(), imread)(path)
    except ReadError:
        raise
    except Exception as error:  # readers of images raise whatever a damaged header leads them to, struct.error as well
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ReadError(
            path, f"is no image that can be opened ({reason}): write it again as PNG, TIFF or .npy"
        ) from error
    if path.suffix.lower() == ".png" and pixels.ndim == 3:
        colours = pixels[..., : pixels.shape[-1] - (pixels.shape[-1] in (2, 4))]  # without opacity
        if (colours != colours[..., :1]).any():
            raise ReadError(path, "has colours, expected a mask of two values: segment the vessels first")
        pixels = colours[..., 0]
    if pixels.ndim not in (2, 3) or pixels.dtype.kind not in "buif":
        raise ReadError(path, f"has {pixels.ndim} axes of {pixels.dtype}, expected numbers on two or three axes")
    low, high = (pixels.min(), pixels.max()) if pixels.size else (0, 0)
    if not low < high:
        raise ReadError(path, "has one value everywhere: no foreground")
    if ((pixels != low) & (pixels != high)).any():
        count = len(np.unique(pixels))
        raise ReadError(path, f"has {count} values from {low} to {high}, expected two: threshold it first")
    mask: NDArray[np.bool_] = pixels == high
    return mask


def _read_tiff(path: Path) -> NDArray[Any]:
    """Read an image or a stack of them; of a damaged file the chain of pages may lead round in a circle."""
    import tifffile  # what scikit-image reads such files with

    most = min(MAX_PAGES, path.stat().st_size // PAGE_BYTES)
    with tifffile.TiffFile(path) as file:
        with contextlib.suppress(IndexError):  # as it shall be: there are not that many
            file.pages[most]
            raise ReadError(path, f"has more than {most} pages of images, or is damaged: keep one image or one stack")
        require_memory(path, sum(series.nbytes for series in file.series[:1]))
        return np.asarray(file.asarray())


def _read_npy(path: Path) -> NDArray[Any]:
    return np.asarray(np.load(path, allow_pickle=False))


_READERS: Final[dict[str, Callable[[Path], NDArray[Any]]]] = {
    ".npy": _read_npy,
    ".tif": _read_tiff,
    ".tiff": _read_tiff,
}
