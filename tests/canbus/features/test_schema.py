"""How windows are stored: in half precision, and without what says nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kdgat.canbus import WindowConfig, make_vehicle, simulate, windows_to_graphs
from kdgat.canbus.features import EDGE_FEATURES, NODE_FEATURES, PACKINGS, RECORDINGS, SCHEMA
from kdgat.canbus.features.timer import REST
from kdgat.graphs import GraphStore, write_store


@pytest.mark.parametrize("attack", [None, "dos", "fuzzing", "suppression"])
def test_a_store_has_the_windows_of_a_stream_bit_for_bit(tmp_path: Path, attack: str | None) -> None:
    """In less than half of the room that they take in memory."""
    graphs = windows_to_graphs(simulate(make_vehicle(1), 4.0, attack, seed=3), WindowConfig(stride=30))
    path = tmp_path / "a.h5"
    write_store(
        path, SCHEMA, graphs, node_features=NODE_FEATURES, edge_features=EDGE_FEATURES, build={},
        attributes={RECORDINGS: ["one"]}, packings=PACKINGS,
    )  # fmt: skip
    columns = GraphStore.open(path, SCHEMA).columns
    for column in SCHEMA.stored:
        np.testing.assert_array_equal(columns[column.name], graphs[column.name], err_msg=column.name)
    assert columns.x.nbytes + columns.edge_attr.nbytes < 0.45 * (graphs.x.nbytes + graphs.edge_attr.nbytes)


def test_what_is_not_stored_is_a_clock_at_rest_and_a_mean_of_one_message() -> None:
    packing = PACKINGS["x"]
    place = {name: number for number, name in enumerate(NODE_FEATURES)}
    assert packing.rest[place["early_maximum"]] == packing.rest[place["phase_mean"]] == REST
    assert packing.rest[place["period_known_mean"]] == 1.0
    assert packing.same_as[place["phase_minimum"]] == place["phase_mean"]
    assert packing.same_as[place["early_maximum"]] == place["early_maximum"]
    assert packing.same_as[place["waiting"]] == place["waiting"]
