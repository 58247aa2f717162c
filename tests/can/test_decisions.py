"""One detector decides alike about tables of scores and about graphs, and as it has always decided.

The golden holds what both did when there were two, of recorded logits and suspicions;
`python -m tests.can.test_decisions` writes it anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kdgat.can.detection.loading import GraphDetector
from kdgat.can.evaluation.calibration import DecisionRule
from kdgat.can.evaluation.decision import Detector, decide
from kdgat.can.evaluation.scores import make_table
from kdgat.can.models.names import HABITS
from kdgat.can.models.scaling import Scaling, logit
from kdgat.canbus import WindowConfig
from kdgat.canbus.features.suspicion import Reason
from kdgat.graphs import GraphColumns
from tests.canbus.features.planted_graphs import planted_columns

GOLDEN = Path(__file__).with_name("decisions.json")
NUM_WINDOWS = 400  # of a recording
RECORDINGS = 3
NETWORKS = ("normal", "curriculum", "distill_gat")
LOUD = 4000.0  # far beyond what a calibrated logit may be


@dataclass(frozen=True)
class Case:
    """A detector's rule and its members."""

    seeds: int = 1
    names: tuple[str, ...] = NETWORKS
    threshold: float = 0.75
    habits: bool = True
    kind: str = "budget"


CASES: Mapping[str, Case] = {
    "a network": Case(names=("normal",)),
    "the mean": Case(),
    "the mean of two seeds": Case(seeds=2),
    "networks alone": Case(habits=False, kind="fixed"),
    "a low threshold": Case(threshold=0.5),
    "a high threshold": Case(threshold=0.999),
    "the habits alone": Case(names=()),
}


@dataclass(frozen=True)
class Recorded:
    """Windows of recordings, and what each network has said of them and of their nodes: (seed, name) -> [G], [N]."""

    graphs: list[GraphColumns]
    logits: dict[tuple[int, str], list[tuple[NDArray[np.float32], NDArray[np.float32]]]]


def recorded() -> Recorded:
    """Draw it: a window in ten is suspicious by its habits, and one in fifty is far out."""
    random = np.random.default_rng(20)
    graphs: list[GraphColumns] = []
    logits = {}
    for number in range(RECORDINGS):
        part = planted_columns(NUM_WINDOWS, seed=number, num_recordings=1)
        part["suspicion"][:] = np.where(random.random(NUM_WINDOWS) < 0.1, Reason.FAST, Reason.NOTHING)
        part["node_id"][:] = np.arange(part.num_nodes) - np.repeat(part.node_ptr[:-1], part.node_counts)
        graphs.append(part)
    for seed in range(2):
        for name in NETWORKS:
            found = []
            for part in graphs:
                windows = random.normal(0.0, 3.0, part.num_graphs)
                far = random.random(part.num_graphs) < 0.02
                windows[far] = np.sign(windows[far]) * LOUD
                is_late = np.repeat(np.arange(part.num_graphs) >= 200, part.node_counts)
                nodes = random.normal(-5.0, 1.0, part.num_nodes) + 9.0 * (is_late & (part["node_id"] == 2))
                found.append((windows.astype(np.float32), nodes.astype(np.float16).astype(np.float32)))
            logits[seed, name] = found
    return Recorded(graphs, logits)


class _Recording:
    """A network whose logits were recorded."""

    def __init__(self, logits: tuple[NDArray[np.float32], NDArray[np.float32]]) -> None:
        self._logits = logits

    def score(self, graphs: GraphColumns) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        assert graphs.num_graphs == len(self._logits[0])
        return self._logits


def scaling_of(seed: int, name: str) -> Scaling:
    """Calibrate each member differently."""
    place = seed * len(NETWORKS) + NETWORKS.index(name)
    return Scaling(temperature=1.0 + 0.3 * place, bias=0.1 * place - 0.2)


def by_tables(case: Case, data: Recorded) -> tuple[NDArray[np.float64], list[NDArray[np.bool_]]]:
    """Decide as evaluation does: about the scores of all recordings at once."""
    seeds = range(case.seeds)
    names = [f"drive-{number}" for number in range(RECORDINGS)]

    def joined(seed: int, name: str) -> NDArray[np.float32]:
        return np.concatenate([windows for windows, _ in data.logits[seed, name]])

    tables = {
        seed: make_table(
            data.graphs, [[name] for name in names], {name: joined(seed, name) for name in NETWORKS},
            [False] * RECORDINGS,
        )
        for seed in seeds
    }  # fmt: skip
    scalings = {seed: {name: scaling_of(seed, name) for name in case.names} or {HABITS: Scaling()} for seed in seeds}
    rule = DecisionRule(kind=case.kind, threshold=case.threshold, habits=case.habits) if case.names else DecisionRule()
    verdicts = decide(Detector(" and ".join(case.names) or HABITS, scalings, rule), tables)
    return verdicts.logit, np.split(verdicts.is_alarm, RECORDINGS)


def by_graphs(case: Case, data: Recorded) -> tuple[NDArray[np.float64], list[NDArray[np.bool_]]]:
    """Decide as `kdgat detect` does: about one recording after the other, as its windows come."""
    scalings = {seed: {name: scaling_of(seed, name) for name in case.names} for seed in range(case.seeds) if case.names}
    rule = DecisionRule.of_budget(float(logit(case.threshold)), habits=case.habits)
    logits, decisions = [], []
    for number, graphs in enumerate(data.graphs):
        networks = {
            seed: {name: _Recording(data.logits[seed, name][number]) for name in names}
            for seed, names in scalings.items()
        }
        verdicts = GraphDetector(Detector("", scalings, rule), WindowConfig(), networks).decide(graphs)
        logits.append(verdicts.logit)
        decisions.append(verdicts.is_alarm)
    return np.concatenate(logits), decisions


def described(logits: NDArray[np.float64], decisions: list[NDArray[np.bool_]]) -> dict[str, Any]:
    """Return a golden's entry: the alarms of each recording, a bit per window, and a sum over all windows."""
    alarms = [np.packbits(decision).tobytes().hex() for decision in decisions]
    return {"alarms": alarms, "logits": round(float(logits @ np.arange(len(logits))), 3)}


@pytest.fixture(scope="module")
def data() -> Recorded:
    return recorded()


@pytest.mark.parametrize("name", CASES)
def test_tables_and_graphs_are_decided_alike_and_as_recorded(name: str, data: Recorded) -> None:
    (logits, decisions), (of_graphs, others) = by_tables(CASES[name], data), by_graphs(CASES[name], data)
    assert [one.tolist() for one in others] == [one.tolist() for one in decisions]
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))[name]
    assert described(logits, decisions) == golden
    if CASES[name].names:  # without networks their part is what never alarms
        np.testing.assert_allclose(of_graphs, logits, rtol=0.0, atol=1e-12)
    assert all(0 < np.count_nonzero(decision) < NUM_WINDOWS for decision in decisions), "nothing is decided"


def test_what_the_cases_differ_in_decides() -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert golden.keys() == CASES.keys()
    assert len({str(one["alarms"]) for one in golden.values()}) == len(CASES)


if __name__ == "__main__":
    found = {name: described(*by_tables(case, recorded())) for name, case in CASES.items()}
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
