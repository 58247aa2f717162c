"""A network in a runtime that starts in a tenth of a second and scores a window in a part of a millisecond.

torch takes seconds to import, and longer than a millisecond for the many small operations of one window.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from kdgat.base import UserError
from kdgat.can.models.names import EXPORT_INPUTS, EXPORT_OUTPUTS
from kdgat.graphs import GraphColumns

_NO_ONNX: Final = ("InvalidProtobuf", "InvalidArgument", "NoModel")  # as the runtime names faults of a file
WINDOWS_PER_BATCH: Final = 32  # what is computed of more no longer fits the cache


class Windows(NamedTuple):
    """What a network reads of G windows with N nodes and E edges."""

    node_ptr: NDArray[np.int64]  # [G + 1]
    edge_ptr: NDArray[np.int64]  # [G + 1]
    x: NDArray[np.float32]  # [N, F]
    edge_index: NDArray[np.int32]  # [2, E], local to the window
    edge_attr: NDArray[np.float32]  # [E, D]

    @classmethod
    def of(cls, graphs: GraphColumns, start: int = 0, stop: int | None = None) -> Windows:
        """Take windows `start` to `stop` of column sets, without a copy of their features."""
        nodes, edges = (
            ptr[start : graphs.num_graphs + 1 if stop is None else stop + 1]
            for ptr in (graphs.node_ptr, graphs.edge_ptr)
        )
        of_edges = slice(edges[0], edges[-1])
        return cls(
            nodes - nodes[0], edges - edges[0], graphs.x[nodes[0] : nodes[-1]], graphs.edge_index[:, of_edges],
            graphs.edge_attr[of_edges],
        )  # fmt: skip


class Network:
    """Score windows with an exported attention network, on one core."""

    def __init__(self, model: bytes | Path) -> None:
        """Load a model; UserError names the file that is none."""
        self._name = str(model) if isinstance(model, Path) else "the network"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4  # what is wrong with a file is said by the exception
        try:
            self._session = onnxruntime.InferenceSession(
                model if isinstance(model, bytes) else str(model), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the runtime has a class per fault, and none above them but this one
            raise UserError(f"{self._name} {_refusal(error)}: export it with kdgat model export") from error
        found = {value.name for value in self._session.get_inputs()}
        if found != set(EXPORT_INPUTS):
            raise UserError(
                f"{self._name} reads {', '.join(sorted(found))}, where a detector reads "
                f"{', '.join(EXPORT_INPUTS)}: export it with kdgat model export"
            )

    @property
    def metadata(self) -> dict[str, str]:
        """Return what the file says about itself."""
        return dict(self._session.get_modelmeta().custom_metadata_map)

    def score(self, graphs: GraphColumns | Windows) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the logits of windows [G] and of nodes [N]; UserError for one that is not finite."""
        num_graphs = len(graphs.node_ptr) - 1
        window_logit = np.zeros(num_graphs, np.float32)
        node_logit = np.zeros(len(graphs.x), np.float32)
        for start in range(0, num_graphs, WINDOWS_PER_BATCH):
            stop = min(start + WINDOWS_PER_BATCH, num_graphs)
            nodes, edges = (ptr[start : stop + 1] for ptr in (graphs.node_ptr, graphs.edge_ptr))
            of_nodes, of_edges = slice(nodes[0], nodes[-1]), slice(edges[0], edges[-1])
            shift = np.repeat(nodes[:-1] - nodes[0], np.diff(edges))  # edges are local to their window
            window_logit[start:stop], node_logit[of_nodes] = self._session.run(
                list(EXPORT_OUTPUTS),
                {
                    "x": graphs.x[of_nodes],
                    "edge_index": graphs.edge_index[:, of_edges] + shift,
                    "edge_attr": graphs.edge_attr[of_edges],
                    "batch": np.repeat(np.arange(stop - start), np.diff(nodes)),
                    "num_graphs": np.array(stop - start),
                },
            )
        num_wrong = np.count_nonzero(~np.isfinite(window_logit))
        if num_wrong:  # NaN reaches no threshold: it would pass for no alarm
            raise UserError(
                f"the network gives no finite score for {num_wrong:,} of {num_graphs:,} windows: its weights "
                "are damaged or its training diverged; export it again, or train again"
            )
        return window_logit, node_logit


def _refusal(error: Exception) -> str:
    """Say in words of ours why ONNX Runtime cannot load a file; its own stay with the cause."""
    if type(error).__name__ in _NO_ONNX:
        return "is no ONNX file, or damaged"
    return f"is an ONNX file that ONNX Runtime {onnxruntime.__version__} cannot run ({type(error).__name__})"
