"""Networks that score windows in turn: the first one all of them, the others those of which it is unsure.

Nothing here loads more than numpy: processes that score beside another one start with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from kdgat.can.detection.network import Network, Windows


class Unsure(NamedTuple):
    """The raw scores, both ends among them, at which a network is unsure."""

    lowest: float
    highest: float

    def holds(self, scores: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Return which scores [G] are unsure ones."""
        return (scores >= np.float32(self.lowest)) & (scores <= np.float32(self.highest))


def score_in_turn(
    networks: Sequence[Network], windows: Windows, unsure: Unsure | None = None
) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Return the logits of windows [G] and of nodes [N], by each network.

    With `unsure`, those of all networks but the first are NaN wherever the first one is sure: nobody takes them for
    scores.
    """
    if unsure is None:
        return [network.score(windows) for network in networks]
    first = networks[0].score(windows)
    goes_on = unsure.holds(first[0])
    chosen, nodes = select(windows, goes_on), np.repeat(goes_on, np.diff(windows.node_ptr))
    found = [first]
    for network in networks[1:]:
        of_windows, of_nodes = (np.full_like(logits, np.nan) for logits in first)
        of_windows[goes_on], of_nodes[nodes] = network.score(chosen)
        found.append((of_windows, of_nodes))
    return found


def select(windows: Windows, chosen: NDArray[np.bool_]) -> Windows:
    """Return the windows marked in `chosen` [G]; edges are local to their window, so that they stay as they are."""
    counts = np.diff(windows.node_ptr), np.diff(windows.edge_ptr)
    nodes, edges = (np.repeat(chosen, count) for count in counts)
    node_ptr, edge_ptr = (np.concatenate(([0], np.cumsum(count[chosen]))) for count in counts)
    return windows._replace(
        node_ptr=node_ptr,
        edge_ptr=edge_ptr,
        x=windows.x[nodes],
        edge_index=windows.edge_index[:, edges],
        edge_attr=windows.edge_attr[edges],
    )
