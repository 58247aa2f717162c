"""The backend that preprocessing computes on: pandas and scikit-learn have the interfaces of cudf and cuml."""

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from kdgat.base import UserError
from kdgat.can import backend
from kdgat.can.backend import dataframes, new_scaler, use_backend
from kdgat.can.capabilities import CUDF, CUML, Capability
from kdgat.can.data.pool import PooledStores
from kdgat.can.models.attention import GraphAttentionNetwork
from kdgat.can.models.scoring import fit_standardisation
from kdgat.can.models.standardise import column_statistics
from kdgat.can.plan import FAMILY, plan_can
from kdgat.can.sections import AttentionConfig
from kdgat.can.stages import run
from kdgat.can.training.preparation import run_prepare
from kdgat.canbus import Messages, ReadLimits, RecordingError, read_recording, write_recording
from kdgat.canbus.readers import parquet
from kdgat.canbus.readers.parquet import decode_payloads, read_columns, read_parquet
from kdgat.run.kinds import StageKind
from kdgat.run.plan import make_spec
from kdgat.stage import RunDirectory, StageInput, StageSpec
from tests.can.small_runs import make_config
from tests.canbus.features.planted_graphs import planted_columns
from tests.canbus.recording_files import random_messages
from tests.canbus.traffic import bus_traffic

MUCH = 1 << 40
LENIENT = ReadLimits(max_bad_fraction=0.99)
ON_CPU_ONLY = Capability(CUDF, False, None, "installed, but it needs a CUDA device: no driver")


@pytest.fixture(autouse=True)
def chosen_anew() -> Iterator[None]:
    use_backend("cpu")
    backend._tell.cache_clear()
    yield
    use_backend("cpu")


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Let pandas stand where cudf would."""
    monkeypatch.setattr(backend, "dataframes", lambda _size: pandas)
    return pandas


@pytest.fixture
def usable(monkeypatch: pytest.MonkeyPatch) -> dict[str, Capability]:
    """Say what is found, by name; nothing unless a test says otherwise."""
    found = {name: Capability(name, False, None, "not installed") for name in (CUDF, CUML)}
    monkeypatch.setattr(backend, "find_package", lambda name: found[name])
    return found


def assert_same(one: Messages, other: Messages) -> None:
    for name in ("timestamp", "identifier", "payload", "length", "label"):
        left, right = getattr(one, name), getattr(other, name)
        assert left.dtype == right.dtype
        assert left.tobytes() == right.tobytes(), name
    assert one.content_hash() == other.content_hash()
    assert (one.bad_rows, one.num_bad_rows, one.labelled) == (other.bad_rows, other.num_bad_rows, other.labelled)


def both(path: Path) -> tuple[Messages, Messages]:
    """Read a recording by the CPU's reader and by the other library."""
    with pytest.MonkeyPatch.context() as patch:
        own = read_recording(path, limits=LENIENT)
        calls = []

        def counted(*arguments: Any) -> parquet.Columns:
            calls.append(arguments)
            return read_columns(*arguments)

        patch.setattr(backend, "dataframes", lambda _size: pandas)
        patch.setattr(parquet, "read_columns", counted)
        other = read_recording(path, limits=LENIENT, backend=backend)
        assert calls, "the other library was not used"
    return own, other


@pytest.mark.parametrize("labelled", [True, False])
def test_a_recording_is_the_same_bit_for_bit(tmp_path: Path, labelled: bool) -> None:
    messages = random_messages(5000, seed=4)
    messages.labelled = labelled
    write_recording(tmp_path / "a.parquet", messages)
    own, other = both(tmp_path / "a.parquet")
    assert_same(own, other)
    assert own.num_messages == 5000


NUMBERS = st.one_of(st.none(), st.floats(width=64), st.floats(0, 1e9))
IDENTIFIERS = st.one_of(st.none(), st.integers(-3, 1 << 31), st.integers(0, (1 << 29) - 1))
TEXTS = st.one_of(
    st.none(),
    st.binary(max_size=8).map(bytes.hex),
    st.binary(max_size=9).map(lambda data: data.hex().upper()),
    st.text("0123456789abcdefABCDEFgG é-\x00", max_size=20),
)
LABELS = st.one_of(st.none(), st.sampled_from([0.0, 1.0, 0.5, float("nan"), 2.0]))


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(NUMBERS, IDENTIFIERS, TEXTS, LABELS), min_size=1, max_size=20))
def test_damaged_rows_are_judged_the_same(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, Any, Any, Any]]
) -> None:
    assume([row[3] for row in rows].count(2.0) < 2)  # what comes again is no damage
    path = tmp_path_factory.mktemp("damaged") / "a.parquet"
    rows = [*rows, (1.0, 2, "AB", 1.0), (2.0, 2, "", 0.0)]
    schema = {"timestamp": pl.Float64, "id": pl.Int64, "data_field": pl.String, "label": pl.Float64}
    pl.DataFrame(rows, schema=schema, orient="row").write_parquet(path)
    assert_same(*both(path))


@pytest.mark.parametrize("kind", [pl.Int8, pl.UInt8, pl.Int64, pl.Float32])
def test_labels_of_any_number_type_are_the_same(tmp_path: Path, kind: Any) -> None:
    columns = {
        "Time": pl.Series([1, 2, 3]),
        "CAN_ID": pl.Series([1, 2, 3], dtype=pl.UInt16),
        "data": pl.Series(["00", "0A0b", ""]),
        "attack": pl.Series([0, 1, None], dtype=kind),
    }
    pl.DataFrame(columns).write_parquet(tmp_path / "a.parquet")
    assert_same(*both(tmp_path / "a.parquet"))


@pytest.mark.parametrize(
    "columns", [{"id": ["0x1F", "7ff"]}, {"label": ["R", "T"]}, {"label": [True, False]}, {"id": [1, 1 << 63]}]
)
def test_columns_of_other_types_are_left_to_the_reader_of_the_cpu(
    tmp_path: Path, on_device: ModuleType, monkeypatch: pytest.MonkeyPatch, columns: dict[str, list[Any]]
) -> None:
    frame = {"timestamp": [1.0, 2.0], "id": [1, 2], "data_field": ["00", "11"], "label": [0, 1], **columns}
    pl.DataFrame(frame).write_parquet(tmp_path / "a.parquet")
    monkeypatch.setattr(parquet, "read_columns", None)
    assert len(read_parquet(tmp_path / "a.parquet", backend).timestamp) == 2


def test_wrong_columns_and_damaged_files_are_refused_as_on_the_cpu(tmp_path: Path, on_device: ModuleType) -> None:
    pl.DataFrame({"timestamp": [1.0], "id": [1.5], "data_field": ["00"], "label": [0]}).write_parquet(tmp_path / "a")
    with pytest.raises(RecordingError, match="column id holds Float64"):
        read_parquet(tmp_path / "a", backend)
    pl.DataFrame({"timestamp": [1.0], "data_field": ["00"]}).write_parquet(tmp_path / "b")
    with pytest.raises(RecordingError, match="no id"):
        read_parquet(tmp_path / "b", backend)
    (tmp_path / "c").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(RecordingError, match="no readable Parquet file"):
        read_parquet(tmp_path / "c", backend)


def test_every_byte_is_decoded_in_every_case_and_place() -> None:
    bytes_of = np.arange(256, dtype=np.uint8)
    for place in range(8):
        texts = [f"{'00' * place}{value:02{case}}" for value in bytes_of for case in "xX"]
        payload, length, is_clear = decode_payloads(pandas.Series(texts))
        assert is_clear.all()
        assert (length == place + 1).all()
        assert (payload[:, place] == np.repeat(bytes_of, 2)).all()
        assert not np.delete(payload, place, axis=1).any()


class _Wrong(ModuleType):
    """A library that decodes every text as if it were empty."""

    def Series(self, texts: list[str | None]) -> Any:  # noqa: N802
        return pandas.Series(["" for _ in texts])


def test_a_library_that_decodes_wrongly_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.parquet"
    write_recording(path, random_messages(50))
    expected = read_recording(path)
    wrong = _Wrong("cudf")
    monkeypatch.setattr(backend, "dataframes", lambda _size: wrong if backend._chosen != "cpu" else None)
    use_backend("auto")
    with caplog.at_level(logging.WARNING):
        assert_same(read_recording(path, backend=backend), expected)
        assert_same(read_recording(path, backend=backend), expected)
    (record,) = caplog.records  # one warning: the process goes on without it
    assert "known payloads come out as others" in record.getMessage()
    use_backend("cuda")
    with pytest.raises(UserError, match=r"data\.backend=cuda: .*cudf failed.*set data\.backend=cpu"):
        read_recording(path, backend=backend)


def test_auto_takes_the_cpu_where_nothing_else_works_and_says_why_once(
    usable: dict[str, Capability], caplog: pytest.LogCaptureFixture
) -> None:
    usable[CUDF] = ON_CPU_ONLY
    use_backend("auto")
    with caplog.at_level(logging.INFO):
        assert [dataframes(MUCH), dataframes(MUCH), new_scaler(MUCH)] == [None, None, None]
    texts = [record.getMessage() for record in caplog.records]
    assert texts == [
        "recordings are read on the CPU; cudf: installed, but it needs a CUDA device: no driver",
        "input scaling is fitted on the CPU; cuml: not installed",
    ]


def test_auto_imports_no_library_for_little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "find_package", None)
    use_backend("auto")
    assert dataframes(1 << 20) is None
    assert new_scaler(1 << 20) is None


def test_auto_takes_the_library_that_works_and_says_so(
    usable: dict[str, Capability], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    usable[CUDF] = Capability(CUDF, True, "26.10", "computes")
    monkeypatch.setitem(__import__("sys").modules, CUDF, pandas)
    use_backend("auto")
    with caplog.at_level(logging.INFO):
        assert dataframes(MUCH) is pandas
    assert [record.getMessage() for record in caplog.records] == ["recordings are read on the GPU, by cudf 26.10"]


def test_what_is_insisted_on_and_missing_is_refused_with_key_reason_and_fix(usable: dict[str, Capability]) -> None:
    use_backend("cuda")
    for ask, name in ((dataframes, CUDF), (new_scaler, CUML)):
        with pytest.raises(UserError) as error:
            ask(1)
        for word in ("data.backend=cuda", name, "not installed", "data.backend=auto", "kdgat doctor"):
            assert word in str(error.value)


def test_outside_of_a_stage_everything_is_computed_on_the_cpu(usable: dict[str, Capability]) -> None:
    usable[CUDF] = Capability(CUDF, True, "26.10", "computes")
    assert dataframes(MUCH) is None


def prepare_spec(folder: Path, name: str) -> StageSpec:
    path = folder / "one.parquet"
    if not path.exists():
        write_recording(path, bus_traffic(num_ids=6, duration_s=8.0, seed=2))
    data = {"dataset": "hand", "data_root": str(folder)}
    config = make_config(
        "quick", ["injection.enabled=false", "windows.size=20", "windows.stride=20", f"data.backend={name}"], data=data
    )
    return make_spec(FAMILY, plan_can(config)[0], {}, {"train/clean/one": StageInput.of_file(path)})


def test_the_backend_is_no_part_of_a_stage_and_its_stores_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = {name: prepare_spec(tmp_path, name) for name in ("auto", "cpu", "cuda")}
    assert len({spec.identity() for spec in specs.values()}) == 1
    assert specs["cuda"].execution == {"backend": "cuda", "accelerator": "auto"}
    contents = []
    for name in ("cpu", "cuda"):
        directory = RunDirectory(tmp_path / name).create(specs[name])
        if name == "cuda":
            monkeypatch.setattr(backend, "dataframes", lambda _size: pandas)
        run_prepare(directory.read_spec(), directory)
        contents.append(
            {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.path.glob("*.h5")}
        )
    assert contents[0] == contents[1]
    assert contents[0]


@pytest.mark.parametrize(("accelerator", "expected"), [("cpu", None), ("auto", pandas)])
def test_a_run_on_the_cpu_is_prepared_there_too(
    tmp_path: Path,
    usable: dict[str, Capability],
    monkeypatch: pytest.MonkeyPatch,
    accelerator: str,
    expected: ModuleType | None,
) -> None:
    usable[CUDF] = Capability(CUDF, True, "26.10", "computes")
    monkeypatch.setitem(__import__("sys").modules, CUDF, pandas)
    found = []
    monkeypatch.setattr(StageKind, "run", lambda *_: found.append(dataframes(MUCH)))
    spec = prepare_spec(tmp_path, "auto")
    run(spec.model_copy(update={"execution": {**spec.execution, "accelerator": accelerator}}), RunDirectory(tmp_path))
    assert found == [expected]


def test_a_stage_computes_on_the_backend_that_its_spec_names(tmp_path: Path, usable: dict[str, Capability]) -> None:
    directory = RunDirectory(tmp_path / "run").create(prepare_spec(tmp_path, "cuda"))
    with pytest.raises(UserError, match="cudf cannot be used here"):
        run(directory.read_spec(), directory)


def features(seed: int) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    random = np.random.default_rng(seed)
    scale = 10.0 ** random.integers(-3, 4, 20)
    centre = random.normal(0.0, 1.0, 20) * 10.0 ** random.integers(-2, 4, 20)
    chunks = [(centre + scale * random.normal(size=(rows, 20))).astype(np.float32) for rows in (700, 1, 0, 4000)]
    for chunk in chunks:
        chunk[:, 3] = 7.25  # never varies
        chunk[:, 4] = 0.0
    return chunks


@pytest.mark.parametrize("seed", range(5))
def test_input_scaling_is_the_same_in_the_precision_that_a_model_keeps(seed: int) -> None:
    chunks = features(seed)
    own = column_statistics(lambda: chunks)
    other = column_statistics(lambda: chunks, scaler=StandardScaler())
    for one, two in zip(own, other, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-11, atol=1e-13)
        assert np.array_equal(one.astype(np.float32), two.astype(np.float32))


def test_scaling_by_no_rows_is_refused_on_both() -> None:
    for scaler in (None, StandardScaler()):
        with pytest.raises(UserError, match="no rows"):
            column_statistics(lambda: [np.zeros((0, 3), np.float32)], scaler=scaler)


class _Failing:
    def partial_fit(self, _chunk: Any) -> None:
        raise MemoryError("out of memory on device")


def test_a_model_is_scaled_by_the_backend_and_by_the_cpu_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pool = PooledStores([planted_columns(30)])
    chosen = np.ones(pool.num_graphs, bool)
    scalings = []
    use_backend("auto")
    for scaler in (None, StandardScaler, _Failing):
        monkeypatch.setattr("kdgat.can.models.scoring.new_scaler", lambda _size, make=scaler: make() if make else None)
        model = GraphAttentionNetwork(AttentionConfig(), pool.num_node_features, pool.num_edge_features)
        fit_standardisation(model, pool, chosen)
        scalings.append(
            {**model.standardise_nodes.state_dict(), "deviation_of_edges": model.standardise_edges.deviation}
        )
    assert "out of memory on device" in caplog.text
    for other in scalings[1:]:
        assert all((scalings[0][name] == other[name]).all() for name in scalings[0])
    use_backend("cuda")
    with pytest.raises(UserError, match="input scaling"):
        fit_standardisation(model, pool, chosen)
