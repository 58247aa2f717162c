"""Which detector is meant by what a person gives: a run directory, a registered model's id, or an exported file.

How runs are evaluated is loaded for a run alone: an exported file, and the habits of identifiers, do not need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from kdgat.base import UserError, sha256_of_file
from kdgat.can.detection.model_file import DetectorParameters, Weights, onnx_bytes, read_model
from kdgat.can.evaluation.calibration import DecisionRule
from kdgat.can.evaluation.decision import Detector, Verdicts
from kdgat.can.models.names import ENSEMBLE, ENSEMBLE_MEMBERS, HABITS
from kdgat.can.models.runtime import Network
from kdgat.can.models.scaling import CALIBRATED_LIMIT
from kdgat.canbus import WindowConfig
from kdgat.canbus.features.suspicion import Reason
from kdgat.graphs import GraphColumns

if TYPE_CHECKING:
    from kdgat.can.evaluation.run import FinishedCanRun
    from kdgat.canbus.profile import Profile

STUDENT: Final = "distill_gat"


@dataclass(frozen=True)
class GraphDetector:
    """A detector with its networks: it scores windows, and decides about them, as they are built."""

    detector: Detector
    windows: WindowConfig
    networks: Mapping[int, Mapping[str, Network]]  # of each member; none where the habits decide alone

    def decide(self, graphs: GraphColumns) -> Verdicts:
        """Return the verdicts on windows and their nodes."""
        found = {
            seed: {name: network.score(graphs) for name, network in networks.items()}
            for seed, networks in self.networks.items()
        }
        scores = {seed: {name: window for name, (window, _) in one.items()} for seed, one in found.items()}
        verdicts = self.detector.decide(scores, graphs["suspicion"] != Reason.NOTHING)
        nodes = [node.astype(np.float64) for one in found.values() for _, node in one.values()]
        node_logit = np.mean(nodes, axis=0) if nodes else np.full(graphs.num_nodes, -CALIBRATED_LIMIT)
        return verdicts._replace(node_logit=node_logit)


def load_detector(
    path: Path | None,
    name: str | None = None,
    seed: int | None = None,
    profile: Profile | None = None,
) -> GraphDetector:
    """Make a detector from a run directory or an exported file; of neither, the habits of identifiers.

    Args:
        path: of `kdgat.registry.find_model`; None for the habits of identifiers.
        name: an attention network of the run, `ensemble`, or `habits`. By default the one whose threshold `profile`
            learned last, else the student of one seed, if the run has one, else what the run itself decides by.
        seed: of the run, that one alone; by default the first for a student that nobody asked for, else all.
        profile: of the vehicle, whose threshold is used if it has one of this detector.

    Raises:
        UserError, RunError: each says
            what is wrong, and what to give.
    """
    if name == "clock":
        raise UserError(f"the arrival clock decides no longer: give --detector {HABITS} in its place")
    if path is None or name == HABITS:
        if name not in (None, HABITS):
            raise UserError(f"detector {name!r} needs a model: give --model, or --detector {HABITS}, which needs none")
        if seed is not None:
            raise UserError(f"--seed {seed} is of a network, and {HABITS} has none: leave it out")
        rule = DecisionRule(kind="budget", habits=True)
        return GraphDetector(Detector(HABITS, {}, rule), WindowConfig(), {})
    if path.is_file():
        return _load_file(path, name, seed, profile)
    return load_run(path, name, seed, profile)


def _load_file(path: Path, name: str | None, seed: int | None, profile: Profile | None) -> GraphDetector:
    file = read_model(path)
    parameters = file.parameters
    if name not in (None, parameters.name):
        raise UserError(f"{path} holds {parameters.name}, not {name!r}: leave --detector out")
    if seed not in (None, parameters.seed):
        raise UserError(f"{path} holds seed {parameters.seed}, not {seed}: leave --seed out")
    seed, name = parameters.seed, parameters.name
    rule = DecisionRule.of_budget(parameters.threshold, habits=parameters.habits)
    detector = Detector(name, {seed: {name: parameters.scaling}}, rule)
    if profile is not None and profile.networks:
        from kdgat.can.evaluation.vehicle import find_threshold

        learned = find_threshold(profile, name, [seed], {f"seed {seed}, {name}": parameters.weights}, path)
        detector = detector if learned is None else detector.at(learned.operating_point)
    return GraphDetector(detector, parameters.windows, {seed: {name: file.network}})


@dataclass(frozen=True)
class TrainedNetwork:
    """A network of a finished run with all that a file of it holds."""

    weights: Weights
    description: dict[str, object]
    parameters: DetectorParameters


def load_run(path: Path, name: str | None, seed: int | None, profile: Profile | None) -> GraphDetector:
    """Make a detector from a run directory; arguments and errors as of `load_detector`."""
    from kdgat.can.evaluation.run import FinishedCanRun, windows_of
    from kdgat.run import OutputDirectory

    run = FinishedCanRun(OutputDirectory(path))
    chosen = chosen_detector(run, name, seed, profile)
    networks: dict[int, dict[str, Network]] = {}
    for seed_of, member in chosen.members:
        one = trained_network(run, chosen, seed_of, member)
        content = onnx_bytes(one.weights, one.description, one.parameters)
        networks.setdefault(seed_of, {})[member] = Network(content)
    return GraphDetector(chosen, windows_of(run), networks)


def chosen_detector(
    run: FinishedCanRun, name: str | None, seed: int | None, profile: Profile | None = None
) -> Detector:
    """Return the calibrated detector of a run that is meant by name and seed, as of `load_detector`."""
    from kdgat.can.evaluation.run import detector_of
    from kdgat.can.evaluation.vehicle import threshold_for, thresholds_of, weights_of

    seeds = None if seed is None else [seed]
    meant = [
        one
        for one in (() if profile is None else thresholds_of(profile))
        if name in (None, one.detector) and seeds in (None, one.seeds) and one.weights == weights_of(run, one.seeds)
    ]
    if meant:
        name, seeds = meant[-1].detector, meant[-1].seeds
    elif name is None and STUDENT in run.weights(run.seeds[0]):
        name, seeds = STUDENT, seeds or run.seeds[:1]
    detector = detector_of(run, name, seeds)
    unfit = [column for _, column in detector.members if column not in ENSEMBLE_MEMBERS]
    if unfit:
        trained = [one for one in ENSEMBLE_MEMBERS if one in run.weights(run.seeds[0])]
        raise UserError(
            f"{detector.model} {'' if unfit[0] == detector.model else f'reads {unfit[0]}, which '}is no attention "
            f"network: give --detector, one of {', '.join([*trained, ENSEMBLE, HABITS])}"
        )
    learned = None if profile is None else threshold_for(profile, run, detector)
    return detector if learned is None else detector.at(learned.operating_point)


def trained_network(
    run: FinishedCanRun,
    detector: Detector,
    seed: int,
    name: str,
) -> TrainedNetwork:
    """Read one network of a detector."""
    from kdgat.can.evaluation.run import windows_of
    from kdgat.training.weights import read_arrays

    if detector.rule.kind == "per_recording":
        raise UserError(
            f"{run.output.path} decides by evaluation.rule=per_recording, which needs a whole recording at once: give "
            "--profile (`kdgat profile --model`), or train with evaluation.rule=budget or fixed"
        )
    weights = run.weights(seed)
    if name not in weights:
        raise UserError(
            f"{run.output.path} was scored by {name} of seed {seed}, whose weights are gone: train it again"
        )
    arrays, description = read_arrays(weights[name])
    parameters = DetectorParameters(
        name=name,
        seed=seed,
        dataset=run.dataset,
        feature_version=run.feature_version(),
        node_features=tuple(description["node_features"] or ()),
        edge_features=tuple(description["edge_features"] or ()),
        windows=windows_of(run),
        scaling=detector.scalings[seed][name],
        threshold=detector.threshold,
        habits=detector.rule.habits,
        weights=sha256_of_file(weights[name]),
    )
    parameters.check_features(str(run.output.path))
    return TrainedNetwork(arrays, description, parameters)
