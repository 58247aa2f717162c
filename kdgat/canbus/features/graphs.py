"""Graphs of message windows: identifiers are nodes, consecutive messages are edges.

A window is `size` messages of one recording; windows start every `stride` messages. A node carries the features of
its messages, reduced, beside counts and positions; an edge states how often and how surprisingly one id followed
another. Everything is relative to the id's or the bus's own past, so that it carries over to another vehicle.

An identifier that is overdue when a window ends is a node of it even without a message: silence is seen, too.

Features are rounded where they are made, as a store keeps them: a stream and a store have the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError
from kdgat.base.machine_code import njit
from kdgat.canbus.features.bus_time import BusClock
from kdgat.canbus.features.clock import Arrivals
from kdgat.canbus.features.filling import AT_REST, REDUCED_BY, REDUCED_COLUMN, count_parts, fill, scratch_for
from kdgat.canbus.features.schema import ATTACK_KINDS, EDGE_FEATURES, NODE_FEATURES, SCHEMA
from kdgat.canbus.features.suspicion import Known, Suspicions, of_windows
from kdgat.canbus.features.traffic_state import DescribedMessages, TrafficState
from kdgat.canbus.messages import UNTOLD
from kdgat.canbus.settings import WindowConfig, num_windows
from kdgat.graphs import GraphColumns

if TYPE_CHECKING:
    from kdgat.canbus.messages import AttackCampaign, Messages


_OTHER_NAMES: Final = {"malfunction": "spoofing"}  # of kinds of attack
_INFINITY: Final = 0x47800000  # 65,536 as float32: what rounds to it is beyond the largest float16


def window_rows(num_messages: int, config: WindowConfig) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first row of each window of a recording [G], and the row after its last one."""
    starts = np.arange(num_windows(num_messages, config), dtype=np.int64) * config.stride
    return starts, np.minimum(starts + config.size, num_messages)


def windows_to_graphs(
    messages: Messages,
    config: WindowConfig,
    chosen: NDArray[np.int64] | None = None,
    known: Known | None = None,
) -> GraphColumns:
    """Cut a recording into windows and build their graphs, or those of the windows `chosen` [G], ascending.

    By what a profile knows of identifiers, if it is given.

    A window is an attack if any of its messages is injected, or if it overlaps a campaign that keeps messages off the
    bus; a node, if any of its messages in the window is injected, or if it is waited for because of such a campaign.
    Messages after the last whole window belong to none; a recording that is shorter than one gives one short graph.

    Returns:
        columns of G graphs with N nodes and E edges together: `x` [N, NODE_FEATURES], `edge_index` [2, E], `edge_attr`
        [E, EDGE_FEATURES], `y` [G] and `node_y` [N] (1: attacked), `node_id` [N], `start_time` [G] in seconds on
        the bus, ...; all of `kdgat.canbus.features.SCHEMA`.

    Raises:
        UserError: naming a feature whose value no store can keep, a fault of the features.

    >>> from kdgat.canbus import make_vehicle, simulate
    >>> from kdgat.canbus.features import NODE_FEATURES
    >>> messages = simulate(make_vehicle(5), 2.0, "malfunction", seed=1)
    >>> graphs = windows_to_graphs(messages, WindowConfig(size=100, stride=100))
    >>> len(messages), graphs.num_graphs, graphs["x"].shape[1] == len(NODE_FEATURES), int(graphs["y"].sum())
    (2047, 20, True, 7)
    """
    starts, stops = window_rows(len(messages), config)
    wanted = None
    if chosen is not None:
        starts, stops = starts[chosen], stops[chosen]
        wanted = _within(starts, stops, len(messages))
    state = TrafficState(known)
    described, waiting = state.describe(messages, stops, wanted)
    return graphs_of(described, waiting, starts, stops, num_ids=state.num_ids, campaigns=messages.campaigns)


def _within(starts: NDArray[np.int64], stops: NDArray[np.int64], num_messages: int) -> NDArray[np.bool_]:
    """Return which of M messages are in any of some windows."""
    depth = np.bincount(starts, minlength=num_messages + 1) - np.bincount(stops, minlength=num_messages + 1)
    return np.cumsum(depth[:num_messages]) > 0


def attacked_windows(
    messages: Messages, starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Return which windows are attacked [G], and how many messages of each are injected, without building them."""
    injected = np.concatenate([[0], np.cumsum(messages.label != 0)])
    attack_count = (injected[stops] - injected[starts]).astype(np.int32)
    y = (attack_count > 0).astype(np.int8)
    silencing = [campaign for campaign in messages.campaigns if campaign.silences]
    if silencing and len(starts):
        log_time = BusClock().read(np.ascontiguousarray(messages.timestamp)).log_time
        for campaign in silencing:
            y[_overlap(campaign, log_time, starts, stops)] = 1
    return y, attack_count


def _overlap(
    campaign: AttackCampaign, log_time: NDArray[np.float64], starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which windows overlap a campaign, which is known by the clock of the log."""
    return (log_time[starts] <= campaign.end_s) & (log_time[stops - 1] >= campaign.begin_s)


def graphs_of(
    described: DescribedMessages,
    clock: Arrivals,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    *,
    num_ids: int,
    first: int = 0,
    campaigns: tuple[AttackCampaign, ...] = (),
) -> GraphColumns:
    """Build the graphs of windows, given as rows of described messages, the first of which is row `first` on the whole.

    `clock` holds which identifiers are waited for at the end of each window.
    """
    num_graphs = len(starts)
    node_ptr, edge_ptr = count_parts(described.number, num_ids, starts, stops, clock)
    num_nodes, num_edges = int(node_ptr[-1]), int(edge_ptr[-1])
    x = np.zeros((num_nodes, len(NODE_FEATURES)), np.float32)
    edge_index = np.zeros((2, num_edges), np.int32)
    edge_attr = np.zeros((num_edges, len(EDGE_FEATURES)), np.float32)
    node_y = np.zeros(num_nodes, np.int8)
    node_id = np.zeros(num_nodes, np.int32)
    attack_count = np.zeros(num_graphs, np.int32)
    most_messages, most_nodes = (int(counts.max(initial=1)) for counts in (stops - starts, np.diff(node_ptr)))
    scratch = scratch_for(num_ids, most_messages, most_nodes)
    fill(
        described, clock, first, scratch, starts, stops, node_ptr, edge_ptr, REDUCED_COLUMN, REDUCED_BY, AT_REST,
        x, edge_index, edge_attr, node_y, node_id, attack_count,
    )  # fmt: skip
    suspicion, suspect = of_windows(Suspicions(described.reason, described.suspect), starts, stops)
    round_features(x, NODE_FEATURES)
    round_features(edge_attr, EDGE_FEATURES)
    y, kind = (attack_count > 0).astype(np.int8), np.zeros(num_graphs, np.int8)
    kind[y == 1] = ATTACK_KINDS.index("unknown")
    is_waited_for = x[:, NODE_FEATURES.index("waiting")] > 0.0
    for campaign in campaigns:
        active = _overlap(campaign, described.log_time, starts, stops)
        if campaign.silences:
            y[active] = 1
            of_nodes = np.repeat(active, np.diff(node_ptr))
            node_y[of_nodes & is_waited_for & np.isin(node_id, np.array(campaign.identifiers, np.int32))] = 1
        if campaign.kind == UNTOLD:  # every message of that time has the label: of no identifier is it known
            node_y[np.repeat(active, np.diff(node_ptr))] = 0
        name = campaign.kind.lower()
        name = _OTHER_NAMES.get(name, name)
        kind[active & (y == 1)] = ATTACK_KINDS.index(name if name in ATTACK_KINDS else "unknown")
    return GraphColumns(
        SCHEMA,
        node_ptr=node_ptr,
        edge_ptr=edge_ptr,
        x=x,
        edge_index=edge_index,
        edge_attr=edge_attr,
        y=y,
        node_y=node_y,
        node_id=node_id,
        recording=np.zeros(num_graphs, np.int32),
        first_message=first + starts,
        start_time=described.time[starts],
        end_time=described.time[stops - 1],
        message_count=(stops - starts).astype(np.int32),
        attack_count=attack_count,
        kind=kind,
        suspicion=suspicion,
        suspect=suspect,
    )


def round_features(rows: NDArray[np.float32], names: Sequence[str]) -> None:
    """Round features [N, F] to the nearest float16, in place; -0 becomes 0.

    Raises:
        UserError: naming a feature whose value is not finite, or beyond 65,504.
    """
    place = _round(rows.reshape(-1).view(np.uint32))
    if place >= 0:
        raise UserError(
            f"feature {names[place % len(names)]} is {rows.reshape(-1)[place]}, beyond what a store keeps "
            "(65,504): a fault of kdgat's features; report it with the recording"
        )


@njit(cache=True, nogil=True)
def _round(bits: NDArray[np.uint32]) -> Any:
    """Round numbers, given by their bits; return the place of the first that is too large, else -1."""
    most = np.uint32(0)
    smallest = np.float32(2.0**24)
    for place in range(bits.shape[0]):  # without a branch: the compiler takes several at once
        word = bits[place]
        size = word & np.uint32(0x7FFFFFFF)
        # Half of a unit of the last of ten bits is added, less one where the tenth bit is even: ties go to even.
        rounded = np.uint32(
            (size + np.uint32(0xFFF) + ((size >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
        )
        most = max(most, rounded)
        # Below 2^-14 float16 has steps of 2^-24. What is larger is not looked at: it may not even be a number.
        tiny = np.uint32(min(size, np.uint32(0x38800000))).view(np.float32)
        stepped = np.float32(np.rint(tiny * smallest) / smallest).view(np.uint32)
        rounded = stepped if size < np.uint32(0x38800000) else min(rounded, max(size, np.uint32(_INFINITY)))
        bits[place] = rounded if rounded == 0 else rounded | (word & np.uint32(0x80000000))
    if most >= np.uint32(_INFINITY):
        for place in range(bits.shape[0]):  # what was too large still is
            if (bits[place] & np.uint32(0x7FFFFFFF)) >= np.uint32(_INFINITY):
                return np.int64(place)
    return np.int64(-1)
