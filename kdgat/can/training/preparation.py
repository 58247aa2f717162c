"""The stage `prepare`: recordings become graph stores, split without leaks, with a pool of injected attacks.

Inputs are recordings, named `<role>/<scenario>/<recording>` with role train, validation, test or duplicate, and of many
vehicles `<role>@<vehicle>/...`. Where none has the role validation, the last part of each training recording validates,
with a gap before it. The injected traffic of each split is made from that split alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError, num_usable_cores, validate_config, write_json_atomically
from kdgat.can import backend
from kdgat.can.kinds import PrepareConfig
from kdgat.can.training.division import OF_VEHICLE, TRAIN_ROLE, VALIDATION_ROLE, Division, VehicleDivision
from kdgat.canbus import Messages, ReadLimits, WindowConfig, read_recording
from kdgat.canbus.features import (
    EDGE_FEATURES,
    FEATURE_VERSION,
    INJECTED,
    INJECTED_VALIDATION,
    NODE_FEATURES,
    PACKINGS,
    RECORDINGS,
    SCHEMA,
    TRAIN,
    VALIDATION,
    window_chunks,
)
from kdgat.canbus.injection import InjectedPool, TrafficFile, clean_stretches, name_variant, summarise_injection
from kdgat.canbus.labelling import learned_as_benign
from kdgat.canbus.look import require_judgeable
from kdgat.canbus.summary import (
    DUPLICATE_ROLE,
    LABELS_ROLE,
    VEHICLES,
    InjectionSummary,
    RecordingSummary,
    RunningSummary,
    SplitSummary,
    list_bad_rows,
    summarise_recording,
)
from kdgat.graphs import GraphColumns, GraphStore, write_store
from kdgat.stage import Finished, Outcome, RunDirectory, StageSpec
from kdgat.stage.faults import patiently
from kdgat.training import Deadline, Part, Parts, Preparation
from kdgat.training.preparation import check_feature_version

logger = logging.getLogger(__name__)

TEST_ROLE: Final = "test"
VARIANTS_IN_PART: Final = 25  # virtual recordings; seconds to a minute
WINDOWS_AT_ONCE: Final = 2048  # copied from a part to a store; 16 MB
VALIDATION_SEED: Final = 1_000_003  # keeps injected validation traffic apart from that of training
SHORTEST_STRETCH_S: Final = 0.7  # attack-free traffic that a virtual recording can be made of
DATA_SUMMARY: Final = "data_summary"
INJECTION_SUMMARY: Final = "injection_summary"


def run_prepare(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Write the stores of a run: train, validation, injected, injected_validation, test-<scenario>.

    Paused if the job ends before all parts are made.

    Raises:
        UserError: if no recording trains, or no window is left for validation.
        RecordingError: naming the file, if one cannot be read.
    """
    return _Preparation(spec, directory).run()


def preparation_parts(spec: StageSpec, directory: RunDirectory) -> Parts:
    """Return the parts of a preparation, which may be made in any order and anywhere; raises what the stage does."""
    backend.use_backend(spec.execution.get(backend.KEY, "auto"))
    return _Preparation(spec, directory).parts


@dataclass(frozen=True)
class _Recording:
    """A recording, as the spec names it."""

    role: str
    scenario: str
    name: str
    path: Path
    vehicle: str | None = None

    @property
    def title(self) -> str:
        return f"{self.scenario}/{self.name}"


@dataclass(frozen=True)
class _Pool:
    """What a store of injected windows is made of."""

    seed: int
    num_variants: int
    shortest_s: float  # of the stretches that it is made of, where there are any so long
    parts: dict[str, range]  # name -> variants


class _Preparation(Preparation):
    """The stores of a run, and the parts that they are joined from: one per recording, and some virtual ones each."""

    def __init__(self, spec: StageSpec, directory: RunDirectory) -> None:
        config = validate_config(PrepareConfig, spec.config)
        check_feature_version(config.feature_version, FEATURE_VERSION)
        self.config = config
        self._traffic: dict[str, tuple[list[Messages], list[str]]] | None = None
        self._traffic_lock = threading.Lock()
        self.limits = ReadLimits(max_bad_fraction=config.data.max_bad_fraction)
        roles = (TRAIN_ROLE, VALIDATION_ROLE, TEST_ROLE, DUPLICATE_ROLE)
        self.recordings = {role: _inputs_of(spec, directory, role) for role in roles}
        self.learned = self.recordings[TRAIN_ROLE] | self.recordings[VALIDATION_ROLE]
        if not self.recordings[TRAIN_ROLE]:
            raise UserError(
                f"dataset {config.data.dataset!r}: no recording trains; name a scenario train_..., or list "
                "train_scenarios in its catalog entry"
            )
        injection, seed = config.injection, config.data.seed
        num_validation = max(1, round(injection.variants * injection.validation_share))
        self.pools = {
            INJECTED: _Pool(seed, injection.variants, 10.0, _divide(INJECTED, injection.variants)),
            INJECTED_VALIDATION: _Pool(
                seed + VALIDATION_SEED, num_validation, 3.0, _divide(INJECTED_VALIDATION, num_validation)
            ),
        }
        if not injection.enabled:
            self.pools = {}
        recordings = {
            role: [Part(name, 1, partial(self._make_recording, one)) for name, one in found.items()]
            for role, found in self.recordings.items()
        }
        injected = {
            store: [
                Part(name, len(variants), partial(self._make_injected, store, pool, variants))
                for name, variants in pool.parts.items()
            ]
            for store, pool in self.pools.items()
        }
        parts = {TRAIN_ROLE: recordings.pop(TRAIN_ROLE), **injected, **recordings}
        num_virtual = sum(pool.num_variants for pool in self.pools.values())
        num_real = sum(map(len, self.recordings.values()))
        unit = f"recordings ({num_real:,} real, {num_virtual:,} virtual)" if num_virtual else "recordings"
        super().__init__(directory, unit, parts)

    def run(self) -> Outcome:
        """Make the parts, those that training is made of first, and join them; Paused as of `Preparation.run`."""
        deadline = Deadline.from_environment()
        # Threads, because what takes the time is compiled and lets others run, and all read the same recordings.
        threads = num_usable_cores()
        if paused := self.parts.make_missing(deadline, list(self.learned), threads):
            return paused
        self.check_windows()  # before anything is made of them
        return self.parts.make_missing(deadline, threads=threads) or self.join()

    def traffic(self, store: str) -> tuple[list[Messages], list[str]]:
        """Return the attack-free stretches that a pool is made of, and the vehicle of each; read once."""
        with self._traffic_lock:
            if self._traffic is None:
                self._traffic = self._read_traffic()
            return self._traffic[store]

    def _read_traffic(self) -> dict[str, tuple[list[Messages], list[str]]]:
        """Cut the attack-free stretches out of the training recordings, for each pool those of its own split."""
        found: dict[str, dict[str, list[Messages]]] = {INJECTED: {}, INJECTED_VALIDATION: {}}
        kept = TrafficFile(self.directory.parts_path)
        for one in self.learned.values():
            self.parts.check_abandoned()
            kept.append(self._read(one))
        for one, messages in zip(self.learned.values(), kept.view(), strict=True):
            division, vehicle = self._division(one, len(messages)), one.vehicle or ""
            for store, rows in (
                (INJECTED, slice(0, division.training_end)),
                (INJECTED_VALIDATION, slice(division.validation_begin, None)),
            ):
                found[store].setdefault(vehicle, []).append(messages.select(rows))
        traffic = {}
        for store, pool in self.pools.items():
            clean = {vehicle: _clean(parts, pool.shortest_s) for vehicle, parts in found[store].items()}
            stretches = [stretch for some in clean.values() for stretch in some]
            traffic[store] = (stretches, [vehicle for vehicle, some in clean.items() for _ in some])
        return traffic

    def _division(self, one: _Recording, num_messages: int) -> Division:
        if self.recordings[VALIDATION_ROLE]:
            return Division.whole(num_messages, validates=one.role == VALIDATION_ROLE)
        return Division.of(num_messages, self.config)

    def _make_recording(self, one: _Recording, path: Path) -> dict[str, Any]:
        """Write the windows of one recording; return what is in it. One that is left out has none."""
        messages = self._read(one)
        for row in messages.bad_rows:
            logger.warning("%s:%d: dropped, %s", one.path, row.line, row.reason)
        if messages.num_backward:
            logger.warning("%s: the clock runs backwards %d times; file order is kept", one.path, messages.num_backward)
        if one.role in (TRAIN_ROLE, VALIDATION_ROLE) and not messages.labelled:
            raise learned_as_benign(one.path)
        findings = require_judgeable(one.path, messages)
        parts, num_windows, num_benign = list[GraphColumns](), {}, {}
        if one.role != DUPLICATE_ROLE and messages.labelled:
            chunks = self._watched(window_chunks(messages, self.config.windows))
            _write_graphs(path, chunks, [one.title], self.config.windows)
            graphs = GraphStore.open(path, SCHEMA).columns
            division = self._division(one, len(messages))
            chosen = {store: division.windows(graphs, store) for store in (TRAIN, VALIDATION)}
            num_windows = {store: len(windows) for store, windows in chosen.items()}
            num_benign = {store: int((graphs["y"][windows] == 0).sum()) for store, windows in chosen.items()}
            parts.append(graphs)
        logger.info("read %s", one.title)
        return {
            "labelled": messages.labelled,
            "num_windows": num_windows,
            "num_benign": num_benign,
            "recording": summarise_recording(messages, one.role, *parts, vehicle=one.vehicle).model_dump(mode="json"),
            "bad_rows": list_bad_rows(messages),
            "notes": [f"{one.title}: {note}" for note in findings.notes()],
        }

    def _make_injected(self, store: str, pool: _Pool, variants: range, path: Path) -> dict[str, Any] | None:
        """Write the windows of some virtual recordings; return what was injected, None where nothing can be."""
        traffic, vehicles = self.traffic(store)
        if not traffic and store == INJECTED:
            raise UserError(
                f"dataset {self.config.data.dataset!r}: no training recording has {SHORTEST_STRETCH_S:g} s without "
                "attack to inject into; add attack-free recordings, or train on the recordings alone with "
                "-O injection.enabled=false"
            )
        if not traffic:
            return None
        made = InjectedPool(traffic, self.config.injection, self.config.windows, pool.seed, variants, vehicles)
        numbered = (_numbered(graphs, number) for number, graphs in enumerate(self._watched(made)))
        _write_graphs(path, numbered, [name_variant(variant) for variant in variants], self.config.windows)
        return made.counts()

    def _watched(self, chunks: Iterable[GraphColumns]) -> Iterator[GraphColumns]:
        for chunk in chunks:
            self.parts.check_abandoned()
            yield chunk

    def _read(self, one: _Recording) -> Messages:
        messages = read_recording(one.path, scenario=one.scenario, limits=self.limits, backend=backend)
        messages.name = one.name
        return messages

    def check_windows(self) -> None:
        """Refuse training recordings that leave nothing to train on, or to validate with."""
        parts = [self.parts.summary(name) for name in self.learned]
        for store in (TRAIN, VALIDATION):
            if not any(part["num_windows"][store] for part in parts):
                data, windows = self.config.data, self.config.windows
                raise UserError(
                    f"dataset {data.dataset!r}: no window is left for {store}; give longer recordings, or change "
                    f"data.validation_fraction={data.validation_fraction} or windows.size={windows.size}"
                )
        benign = [part.get("num_benign", part["num_windows"]) for part in parts]  # of an older kdgat: not counted
        # Where there are none to train on either, injection says so.
        if any(one[TRAIN] for one in benign) and not any(one[VALIDATION] for one in benign):
            raise UserError(
                f"dataset {self.config.data.dataset!r}: every window for validation is attacked, and the autoencoder "
                "is chosen by those that are not: add a training recording that ends without attack, or give "
                f"data.validation_fraction={self.config.data.validation_fraction} another value"
            )

    def join(self) -> Finished:
        """Write the stores from the parts, and what is said about them, and remove the parts."""
        summary = RunningSummary(self.config.windows)
        artifacts: dict[str, str] = {}

        def write(
            store: str,
            read: Callable[[], Iterable[GraphColumns]],
            names: Sequence[str],
            vehicles: Sequence[str | None] = (),
        ) -> None:
            path = self.directory.path / f"{store}.h5"
            if not path.is_file():
                patiently(lambda: _write_graphs(path, read(), names, self.config.windows, vehicles))
            split = patiently(lambda: _summarise_store(path))
            summary.add_split(store, split)
            logger.info("%s: %d windows, %d of them attacked", path.name, split.num_windows, split.num_attack_windows)
            artifacts[store] = path.name

        for name in self.learned:
            summary.add(*self._described(name))
        validating = self.recordings[VALIDATION_ROLE]
        for store, recordings in ((TRAIN, self.recordings[TRAIN_ROLE]), (VALIDATION, validating or self.learned)):
            vehicles = [one.vehicle for one in recordings.values()]
            titles = [one.title for one in recordings.values()]
            write(store, partial(self._divided, store, recordings), titles, vehicles if any(vehicles) else ())
        if validating:
            by_role = [
                frozenset(one.vehicle for one in some.values() if one.vehicle) for some in (self.learned, validating)
            ]
            summary.note(VehicleDivision(*by_role).sentence())
        injection = InjectionSummary(enabled=self.config.injection.enabled, seed=self.config.data.seed)
        for store, pool in self.pools.items():
            counts = [self.parts.summary(name) for name in pool.parts]
            if None in counts:
                summary.note(f"{store}: no stretch without attack is long enough; nothing is injected")
                continue
            write(store, partial(self._injected, pool), [name_variant(variant) for variant in range(pool.num_variants)])
            if store == INJECTED:
                injection = summarise_injection(counts, pool.seed, pool.num_variants)
        for scenario in sorted({one.scenario for one in self.recordings[TEST_ROLE].values()}):
            tests = {name: one for name, one in self.recordings[TEST_ROLE].items() if one.scenario == scenario}
            for name, one in list(tests.items()):
                if self.parts.summary(name)["labelled"]:
                    summary.add(*self._described(name))
                else:
                    summary.note(f"{one.title} has no labels and tests nothing")
                    del tests[name]
            if tests:
                write(f"test-{scenario}", partial(self._whole, list(tests)), [one.title for one in tests.values()])
        for name in self.recordings[DUPLICATE_ROLE]:
            summary.add_duplicate(self._described(name)[0])
        for role in (TRAIN_ROLE, VALIDATION_ROLE, TEST_ROLE):
            for name in self.recordings[role]:
                for note in self.parts.summary(name).get("notes", ()):  # an older kdgat noted nothing
                    summary.note(note)
        for note in summary.content.notes:
            logger.warning("%s", note)
        write_json_atomically(self.directory.path / f"{DATA_SUMMARY}.json", summary.content.model_dump(mode="json"))
        write_json_atomically(self.directory.path / f"{INJECTION_SUMMARY}.json", injection.model_dump(mode="json"))
        self.parts.remove_files(self.parts.by_name)
        artifacts |= {DATA_SUMMARY: f"{DATA_SUMMARY}.json", INJECTION_SUMMARY: f"{INJECTION_SUMMARY}.json"}
        metrics = {f"num_windows_{name}": float(split.num_windows) for name, split in summary.content.splits.items()}
        return Finished(metrics=metrics, artifacts=artifacts)

    def _described(self, name: str) -> tuple[RecordingSummary, list[str]]:
        found = self.parts.summary(name)
        return validate_config(RecordingSummary, found["recording"]), found["bad_rows"]

    def _columns(self, name: str, number: int) -> GraphColumns:
        """Return the windows of a recording as number `number` of a store."""
        return _numbered(GraphStore.open(self.parts.path(name), SCHEMA).columns, number)

    def _whole(self, names: Sequence[str]) -> Iterator[GraphColumns]:
        """Yield the windows of recordings."""
        for number, name in enumerate(names):
            columns = self._columns(name, number)
            for windows in _portions(np.arange(columns.num_graphs)):
                yield columns.select(windows)

    def _divided(self, store: str, recordings: Mapping[str, _Recording]) -> Iterator[GraphColumns]:
        """Yield the windows of each of these recordings that train, or that validate."""
        for number, (name, one) in enumerate(recordings.items()):
            columns = self._columns(name, number)
            division = self._division(one, self._described(name)[0].num_messages)
            for windows in _portions(division.windows(columns, store)):
                yield columns.select(windows)

    def _injected(self, pool: _Pool) -> Iterator[GraphColumns]:
        for name, variants in pool.parts.items():
            columns = GraphStore.open(self.parts.path(name), SCHEMA).columns
            yield columns.replace(recording=columns["recording"] + np.int32(variants.start))


def _portions(windows: NDArray[np.intp]) -> Iterator[NDArray[np.intp]]:
    """Cut windows into portions that are copied at once, at least one."""
    for start in range(0, max(len(windows), 1), WINDOWS_AT_ONCE):
        yield windows[start : start + WINDOWS_AT_ONCE]


def _numbered(graphs: GraphColumns, number: int) -> GraphColumns:
    """Say that windows are of recording `number` of a store."""
    return graphs.replace(recording=np.full(graphs.num_graphs, number, np.int32))


def _divide(store: str, num_variants: int) -> dict[str, range]:
    """Name the parts of a pool."""
    starts = range(0, num_variants, VARIANTS_IN_PART)
    return {f"{store}/{start:05d}": range(start, min(start + VARIANTS_IN_PART, num_variants)) for start in starts}


def store_attributes(windows: WindowConfig) -> dict[str, Any]:
    """Return what a store says about how it was built."""
    return {"family": "can", "feature_version": FEATURE_VERSION, "windows": windows.model_dump(mode="json")}


def _inputs_of(spec: StageSpec, directory: RunDirectory, role: str) -> dict[str, _Recording]:
    """Return the recordings of a role by the name of their part."""
    found = []
    for key in sorted(spec.inputs):
        parts = key.split("/", 2)
        own, _, vehicle = parts[0].partition(OF_VEHICLE)
        roles = (TRAIN_ROLE, VALIDATION_ROLE, TEST_ROLE, DUPLICATE_ROLE, LABELS_ROLE)
        if len(parts) != 3 or own not in roles:
            raise UserError(f"input {key!r} is not named <{'|'.join(roles)}>/<scenario>/<recording>")
        if own == role:
            path = spec.inputs[key].resolve(directory.path)
            found.append(_Recording(role, parts[1], parts[2], path, vehicle or None))
    return {f"{role}/{number:05d}": one for number, one in enumerate(found)}


def _clean(parts: Sequence[Messages], shortest_s: float) -> list[Messages]:
    """Cut attack-free stretches; where none is that long, those of half the length, and so on."""
    while shortest_s >= SHORTEST_STRETCH_S:
        stretches = [stretch for part in parts for stretch in clean_stretches(part, shortest_s)]
        if stretches:
            return stretches
        shortest_s /= 2.0
    return []


def _write_graphs(
    path: Path,
    chunks: Iterable[GraphColumns],
    names: Sequence[str],
    windows: WindowConfig,
    vehicles: Sequence[str | None] = (),
) -> None:
    """Write a store whose chunks say which of the recordings `names` they are from; `vehicles` are those of each."""
    write_store(
        path,
        SCHEMA,
        chunks,
        node_features=NODE_FEATURES,
        edge_features=EDGE_FEATURES,
        attributes={RECORDINGS: list(names)} | ({VEHICLES: [name or "" for name in vehicles]} if vehicles else {}),
        packings=PACKINGS,
        build=store_attributes(windows),
    )


def _summarise_store(path: Path) -> SplitSummary:
    columns = GraphStore.open(path, SCHEMA).columns
    return SplitSummary(
        num_windows=columns.num_graphs,
        num_attack_windows=int(columns["y"].sum()),
        num_messages=int(columns["message_count"].sum()),
    )
