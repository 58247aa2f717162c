"""A finished run's own detector on recordings that are read now.

Attention networks are exported, and run without torch, on all cores that they are given; an autoencoder, a
fusion, a network that knows identifiers by name, and a job that was given a GPU need torch.
"""

import importlib.util
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from kdgat.base import ConfigurationError, UserError, num_usable_cores
from kdgat.can.evaluation.decision import Detector, Tables
from kdgat.can.evaluation.run import FinishedCanRun, detector_of, windows_of
from kdgat.can.evaluation.scores import baseline_scores, make_table
from kdgat.can.models.names import ENSEMBLE_MEMBERS
from kdgat.canbus.features import EDGE_FEATURES, FEATURE_VERSION, NODE_FEATURES, VALIDATION
from kdgat.graphs import GraphColumns
from kdgat.stage.gpus import num_given_gpus
from kdgat.training import one_thread
from kdgat.training.weights import read_arrays

if TYPE_CHECKING:
    from kdgat.can.evaluation.detectors import DetectorSet
    from kdgat.can.evaluation.processes import Pieces, ScoringProcesses

logger = logging.getLogger(__name__)

WORTHWHILE_WINDOWS: Final = 1024  # that another process is started for, which takes a quarter of a second
RUNTIME: Final = ("onnx", "onnxruntime")

Columns = dict[str, NDArray[np.float32]]


def worthwhile_processes(num_windows: int) -> int:
    """Return how many processes should score so many windows on the cores that this one may use, itself among them."""
    return min(num_usable_cores(), 1 + num_windows // WORTHWHILE_WINDOWS)


@dataclass
class BegunRecording:
    """The windows of a recording that are being scored, in the parts that they were built in."""

    graphs: list[GraphColumns]
    pieces: "Pieces | None"  # None: they are scored when they are asked for

    @property
    def num_windows(self) -> int:
        """Count them."""
        return sum(part.num_graphs for part in self.graphs)


class RecordingScorer:
    """Score the windows of recordings with the members of a run's default detector, or of another one of it."""

    def __init__(
        self,
        run: FinishedCanRun,
        detector: str | None = None,
        seeds: Sequence[int] | None = None,
        processes: int = 1,
    ) -> None:
        """Choose the run's detector and load its weights; UserError if the run's features are others.

        With `detector`, a name of `model_names`, that one is calibrated instead, of these seeds (default: all). Use it
        as a context where it may start processes.
        """
        if run.feature_version() != FEATURE_VERSION:
            raise UserError(
                f"{run.output.path}: trained on features of version {run.feature_version()}, this kdgat computes "
                f"version {FEATURE_VERSION}: train again, or evaluate with the kdgat that trained it"
            )
        self.config = run.evaluation_config()
        self.validation = run.tables(VALIDATION)
        self.default_detector: Detector = detector_of(run, detector, seeds)
        self.windows = windows_of(run)
        self.limits = run.read_limits()
        self._places = self.default_detector.members
        self._processes = _open_processes(run, self._places, processes)
        self._detectors: dict[int, DetectorSet] = (
            {} if self._processes is not None else _detector_sets(run, self._places)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._processes is not None:
            self._processes.__exit__(*error)

    @property
    def others_mib(self) -> int:
        """Return the most memory of the other processes that scored, once the context is left."""
        return 0 if self._processes is None else self._processes.others_mib

    def begin(self, parts: Iterable[GraphColumns]) -> BegunRecording:
        """Begin to score the windows of a recording, the first ones while the others are built.

        Scores depend, in their last bits, on where a recording is cut into parts.
        """
        begun = BegunRecording([], None)
        for graphs in parts:
            begun.graphs.append(graphs)
            if self._processes is not None:
                begun.pieces = self._processes.begin(graphs, begun.pieces)
        return begun

    def score(self, parts: Sequence[GraphColumns | BegunRecording], names: Sequence[str]) -> Tables:
        """Return the scores of the windows of recordings, which may have been begun, per seed."""
        begun = [part if isinstance(part, BegunRecording) else self.begin([part]) for part in parts]
        graphs = [part for one in begun for part in one.graphs]
        # Recordings are numbered on behind the part that has a name: the last one.
        labels = [[name] * is_last for one, name in zip(begun, names, strict=True) for is_last in _last_marked(one)]
        baselines = baseline_scores(graphs, NODE_FEATURES)
        return {
            seed: make_table(graphs, labels, columns | baselines, [False] * len(graphs))
            for seed, columns in self._score(begun).items()
        }

    def _score(self, begun: Sequence[BegunRecording]) -> dict[int, Columns]:
        """Return the raw scores of all members [G] per seed."""
        if self._processes is None:
            from kdgat.can.data.pool import PooledStores

            pool = PooledStores([GraphColumns.concatenate(one.graphs) for one in begun])
            with one_thread():
                return {
                    seed: detectors.score(pool, [self.default_detector.model])
                    for seed, detectors in self._detectors.items()
                }
        logits = [self._processes.finish(one.pieces) for one in begun if one.pieces is not None]
        scores: dict[int, Columns] = {seed: {} for seed, _ in self._places}
        for place, (seed, name) in enumerate(self._places):
            scores[seed][name] = np.concatenate([of_recording[place] for of_recording in logits])
        return scores


def _last_marked(begun: BegunRecording) -> list[bool]:
    return [False] * (len(begun.graphs) - 1) + [True]


def _open_processes(
    run: FinishedCanRun, places: Sequence[tuple[int, str]], processes: int
) -> "ScoringProcesses | None":
    """Open the networks of seeds and names; None where they need torch, or a GPU is there to be used."""
    if any(name not in ENSEMBLE_MEMBERS for _, name in places) or num_given_gpus():
        return None
    missing = [package for package in RUNTIME if importlib.util.find_spec(package) is None]
    if missing:
        logger.warning("%s is not installed: torch scores, which is slower; pip install 'kdgat[export]'", missing[0])
        return None
    from kdgat.can.evaluation.processes import ScoringProcesses
    from kdgat.can.models.onnx_graph import attention_graph

    models: list[bytes] = []
    for seed, name in places:
        path = run.weights(seed)[name]
        weights, description = read_arrays(path)
        trained = (description["num_node_features"], description["num_edge_features"])
        if trained != (len(NODE_FEATURES), len(EDGE_FEATURES)):
            raise UserError(
                f"{path} was trained on {trained} node and edge features, the windows have "
                f"{(len(NODE_FEATURES), len(EDGE_FEATURES))}: train again"
            )
        try:
            models.append(attention_graph(weights, description, {}).SerializeToString())
        except ConfigurationError:
            raise
        except UserError as error:
            logger.warning("%s: torch scores instead, which is slower", error)
            return None
    return ScoringProcesses(models, processes)


def _detector_sets(run: FinishedCanRun, places: Sequence[tuple[int, str]]) -> "dict[int, DetectorSet]":
    from kdgat.can.evaluation.detectors import DetectorSet

    return {seed: DetectorSet(run.weights(seed)) for seed in dict.fromkeys(seed for seed, _ in places)}
