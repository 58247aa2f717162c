"""A finished run's own detector on recordings that are read now."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kdgat.can.evaluation.accumulated_evidence import Nodes, learn_accumulation
from kdgat.can.evaluation.decision import DefaultDetector, Tables
from kdgat.can.evaluation.detectors import DetectorSet
from kdgat.can.evaluation.finished_run import EvaluationError, FinishedCanRun
from kdgat.can.evaluation.node_scores import make_node_scores
from kdgat.can.evaluation.run_detector import detector_of, windows_of
from kdgat.can.evaluation.score_tables import make_table
from kdgat.can.evaluation.untrained import baseline_scores
from kdgat.can.windows.feature_names import FEATURE_VERSION, NODE_FEATURES
from kdgat.can.windows.pool import PooledStores
from kdgat.can.windows.schema import VALIDATION

if TYPE_CHECKING:
    from kdgat.graphs.columns import GraphColumns


class RecordingScorer:
    """Score the windows of recordings with the members of a run's default detector, or of another one of it."""

    def __init__(self, run: FinishedCanRun, detector: str | None = None, seeds: Sequence[int] | None = None) -> None:
        """Choose the run's detector and load its weights; EvaluationError if the run's features are others.

        With `detector`, a name of `model_names`, that one is calibrated instead, of these seeds (default: all).
        """
        if run.feature_version() != FEATURE_VERSION:
            raise EvaluationError(
                f"{run.output.path}: trained on features of version {run.feature_version()}, this kdgat computes "
                f"version {FEATURE_VERSION}: train again, or evaluate with the kdgat that trained it"
            )
        self.config = run.evaluation_config()
        self.validation = run.tables(VALIDATION)
        self.default_detector: DefaultDetector = detector_of(run, detector, seeds)
        self.windows = windows_of(run)
        self.limits = run.read_limits()
        self.accumulation = learn_accumulation(
            self.default_detector, self.validation, run.node_scores(VALIDATION), self.config
        )
        self.node_scores: Nodes = {}  # of the windows that were scored last
        self._detectors = {seed: DetectorSet(run.weights(seed)) for seed in self.default_detector.scalings}

    def score(self, parts: "list[GraphColumns]", names: Sequence[str]) -> Tables:
        """Return the scores of column sets, each the windows of one recording, per seed."""
        pool, labels = PooledStores(parts), [[name] for name in names]
        baselines = baseline_scores(parts, NODE_FEATURES)
        wanted = [self.default_detector.model]
        tables = {
            seed: make_table(parts, labels, detectors.score(pool, wanted) | baselines, [False] * len(parts))
            for seed, detectors in self._detectors.items()
        }
        self.node_scores = {
            seed: make_node_scores(parts, detectors.node_scores) for seed, detectors in self._detectors.items()
        }
        return tables
