"""A finished run's own detector on recordings that are read now."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kdgat.can.evaluation.decision import DefaultDetector, Tables, choose_detector
from kdgat.can.evaluation.detectors import DetectorSet
from kdgat.can.evaluation.finished_run import EvaluationError, FinishedCanRun
from kdgat.can.evaluation.score_tables import make_table
from kdgat.can.evaluation.untrained import baseline_scores
from kdgat.can.sections import WindowConfig
from kdgat.can.windows.feature_names import FEATURE_VERSION, NODE_FEATURES
from kdgat.can.windows.pool import PooledStores
from kdgat.can.windows.schema import VALIDATION
from kdgat.stage.configuration import validate_config

if TYPE_CHECKING:
    from kdgat.graphs.columns import GraphColumns


class RecordingScorer:
    """Score the windows of recordings with the members of a run's default detector."""

    def __init__(self, run: FinishedCanRun) -> None:
        """Choose the run's detector and load its weights; EvaluationError if the run's features are others."""
        if run.feature_version() != FEATURE_VERSION:
            raise EvaluationError(
                f"{run.output.path}: trained on features of version {run.feature_version()}, this kdgat computes "
                f"version {FEATURE_VERSION}: train again, or evaluate with the kdgat that trained it"
            )
        self.config = run.evaluation_config()
        self.validation = run.tables(VALIDATION)
        self.default_detector: DefaultDetector = choose_detector(self.validation, self.config)
        self.windows = windows_of(run)
        self.limits = run.read_limits()
        self._detectors = {seed: DetectorSet(run.weights(seed)) for seed in self.default_detector.scalings}

    def score(self, parts: "list[GraphColumns]", names: Sequence[str]) -> Tables:
        """Return the scores of column sets, each the windows of one recording, per seed."""
        pool, labels = PooledStores(parts), [[name] for name in names]
        baselines = baseline_scores(parts, NODE_FEATURES)
        wanted = [self.default_detector.model]
        return {
            seed: make_table(parts, labels, detectors.score(pool, wanted) | baselines, [False] * len(parts))
            for seed, detectors in self._detectors.items()
        }


def windows_of(run: FinishedCanRun) -> WindowConfig:
    """Read how the run cuts recordings into windows."""
    return validate_config(WindowConfig, run.index.config.get("windows", {}))
