"""A small model learns from a large one: teacher outputs, computed once and kept in the run directory.

Hinton et al. 2015. The teacher sees every training window once, before the first step; a step then reads its rows from
memory-mapped arrays. The existing practice of running the teacher in every step costs more than the student itself.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Batch

from kdgat.base import UserError, write_json_atomically
from kdgat.base.files import remove_tree, temporary_path
from kdgat.base.kept import refuse_newer
from kdgat.can.data.pool import PooledStores
from kdgat.can.models.masks import masked_loss
from kdgat.graphs import Column, Placed
from kdgat.graphs.placement import add_columns

DESCRIPTION = "teacher.json"
TEACHER_BATCH = 128  # windows at once; more is slower on a CPU


def distil_bernoulli(
    student_logit: Tensor, teacher_logit: Tensor, temperature: float, mask: Tensor | None = None
) -> Tensor:
    """Return T^2 KL(teacher || student) between Bernoulli distributions tempered by T, averaged over the logits.

    For one logit, the softmax over two classes of Hinton et al. 2015 is the logistic function of logit / T. T^2 keeps
    the size of the gradient independent of T. Zero where the student agrees with the teacher. A mask keeps some logits.
    """
    target, loss = (teacher_logit / temperature).sigmoid(), functional.binary_cross_entropy_with_logits
    entropy = masked_loss(loss, teacher_logit / temperature, target, mask)
    cross = masked_loss(loss, student_logit / temperature, target, mask)
    return temperature**2 * (cross - entropy)


def _describe(directory: Path) -> dict[str, Any]:
    path = directory / DESCRIPTION
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    refuse_newer(content, path)
    return content


class LatentProjection(nn.Linear):
    """Map the student's latent to the teacher's width; trained with the student and thrown away after it."""


class TeacherOutputs:
    """Arrays per window or per node of a pool, memory-mapped, gathered like the windows themselves."""

    def __init__(self, directory: Path, pool: PooledStores) -> None:
        description = _describe(directory)
        self._pool = pool
        self._window = {name: np.load(directory / f"{name}.npy", mmap_mode="r") for name in description["window"]}
        self._node = {name: np.load(directory / f"{name}.npy", mmap_mode="r") for name in description["node"]}
        self._placed: Placed | None = None

    @staticmethod
    def compute(
        directory: Path,
        pool: PooledStores,
        forward: Callable[[Batch], tuple[dict[str, Tensor], dict[str, Tensor]]],
        identity: dict[str, Any],
        indices: NDArray[np.int64] | None = None,
        progress: Callable[[int, int], None] | None = None,
        device: str | torch.device = "cpu",
    ) -> "TeacherOutputs":
        """Write the teacher's outputs for windows `indices` (default: all) of the pool unless they are there already.

        Args:
            directory: where the arrays go; appears at once when they are complete, so that a kill leaves no half of it.
            pool: the windows.
            forward: returns the arrays per window and per node of a batch.
            identity: plain data that says which teacher and which stores these are; must agree on reuse.
            indices: windows to compute; rows of the others stay zero.
            progress: called with the windows done and their total.
            device: where `forward` expects its batches.

        Raises:
            UserError: if `directory` holds the outputs of another teacher.
        """
        if (directory / DESCRIPTION).is_file():
            found = _describe(directory)["identity"]
            if found != identity:
                raise UserError(
                    f"{directory} was computed for {found}, this stage asks for {identity}: remove the directory"
                )
            return TeacherOutputs(directory, pool)
        partial = directory.with_name(directory.name + ".partial")
        remove_tree(partial)
        partial.mkdir(parents=True, exist_ok=True)
        chosen = np.arange(pool.num_graphs) if indices is None else np.sort(indices)
        arrays: dict[str, NDArray[Any]] = {}
        levels: dict[str, list[str]] = {"window": [], "node": []}
        with torch.inference_mode():
            for start in range(0, len(chosen), TEACHER_BATCH):
                graphs = chosen[start : start + TEACHER_BATCH]  # they rise, so a batch has them in this order
                rows = {"window": graphs, "node": pool.node_rows(graphs)}
                by_level = forward(pool.gather(graphs).to(device))
                for level, outputs in zip(("window", "node"), by_level, strict=True):
                    total = pool.num_graphs if level == "window" else pool.num_nodes
                    for name, values in outputs.items():
                        if name not in arrays:
                            levels[level].append(name)
                            arrays[name] = _reserve(partial / f"{name}.npy", (total, *values.shape[1:]))
                        arrays[name][rows[level]] = values.float().cpu().numpy()
                if progress is not None:
                    progress(min(start + TEACHER_BATCH, len(chosen)), len(chosen))
        for array in arrays.values():
            array.flush()  # type: ignore[attr-defined]
        write_json_atomically(partial / DESCRIPTION, {"identity": identity, **levels})
        if not remove_tree(directory):  # what stays goes with the run directory, under a name that nothing has
            directory.replace(temporary_path(directory))
        partial.replace(directory)
        return TeacherOutputs(directory, pool)

    def place_on(self, device: torch.device) -> None:
        """Gather windows and outputs on a device from now on, if it is a GPU with room for them."""
        self._pool.place_on(device)
        windows = self._pool.placed()
        if windows is None:
            self._placed = None
            return
        if self._placed is not None and self._placed.columns.device == device:
            return
        arrays = {_column(name, "graph", array): array for name, array in self._window.items()}
        arrays |= {_column(name, "node", array): array for name, array in self._node.items()}
        columns = add_columns(windows.columns, arrays)
        self._placed = None if columns is None else Placed(columns, windows.order)

    def placed(self) -> Placed | None:
        """Return windows and outputs that lie on a GPU; None where one of them does not."""
        return self._placed

    def gather(self, indices: NDArray[np.int64]) -> Batch:
        """Return the windows of the pool as one batch with `teacher_*` attributes."""
        if self._placed is not None:
            return self._placed.gather(indices)
        batch, graphs = self._pool.gather(indices), self._pool.by_store(indices)
        for name, array in self._window.items():
            batch[f"teacher_{name}"] = torch.from_numpy(array[graphs])
        nodes = self._pool.node_rows(graphs)
        for name, array in self._node.items():
            batch[f"teacher_{name}"] = torch.from_numpy(array[nodes])
        return batch


def _column(name: str, level: Literal["graph", "node"], array: NDArray[Any]) -> Column:
    return Column(f"teacher_{name}", level, "float32", array.shape[1] if array.ndim > 1 else 0, in_batch=True)


def _reserve(path: Path, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Map a new array of zeros whose place on the disk is taken: writing to a hole of a full disk is a SIGBUS."""
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
            except OSError as error:
                error.filename = str(path)
                raise
    return array
