"""`kdgat lap`, as a user calls it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from kdgat.cli.lap import _counted
from kdgat.lap.instances.distributions import generate
from kdgat.lap.instances.records import label
from kdgat.lap.instances.store import LapStore
from tests.lap.schema1_files import write_schema1
from tests.support.command_line import Answer, kdgat
from tests.support.waiting import wait_until


def _kdgat(*words: object, status: int = 0) -> Answer:
    return kdgat("lap", *words, status=status)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lap") / "train.h5"
    _kdgat("generate", "--out", path, "--families", "uniform", "sparse", "--sizes", 8, 12, "--count", 10, "--seed", 3)
    return path


def test_all_commands_are_mounted() -> None:
    text = _kdgat("--help").stdout
    for command in ("generate", "import", "merge", "bucket", "inspect", "solve", "analyze"):
        assert f" {command} " in text


def test_generate_writes_so_many_of_each_family_and_size(generated: Path) -> None:
    store = LapStore.open(generated)
    for family in ("uniform", "sparse"):
        assert [len(store.indices(size=n, family=family)) for n in (8, 12)] == [10, 10]
    assert len(set(store.contents())) == len(store) == 40
    assert store.storage == "seeded"


def test_generate_twice_gives_the_same_and_another_seed_another(generated: Path, tmp_path: Path) -> None:
    words = ["--families", "uniform", "sparse", "--sizes", 8, 12]
    _kdgat("generate", "--out", tmp_path / "a.h5", *words, "--count", 12, "--seed", 3, "--storage", "dense")
    _kdgat("generate", "--out", tmp_path / "b.h5", *words, "--count", 10, "--seed", 4)
    first, longer, other = (
        set(LapStore.open(path).contents()) for path in (generated, tmp_path / "a.h5", tmp_path / "b.h5")
    )
    assert first < longer
    assert not first & other


def test_generate_passes_parameters_to_the_families_that_have_them(tmp_path: Path) -> None:
    words = ("--families", "sparse", "tie", "--sizes", 10, "--count", 1, "-p", "density=0.5", "-p", "bins=3")
    answer = _kdgat("generate", "--out", tmp_path / "a.h5", *words, "--tag", "mine").stdout
    assert answer.startswith(f"{tmp_path / 'a.h5'}: 2 instances (sparse, tie; n = 10), seeded, ")
    store = LapStore.open(tmp_path / "a.h5")
    found = {store.record(index).family: store.record(index).instance for index in range(2)}
    assert found["sparse"].parameters == {"density": 0.5}
    assert found["tie"].parameters == {"bins": 3, "jitter": 1e-6}
    assert found["tie"].tag == "mine"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--families", "metrik"], "family 'metrik' is unknown: did you mean 'metric'?"),
        (["--sizes", "8", "0"], "size 0: a matrix has at least one row; give a whole number of 1 or more"),
        (["--sizes", "99999"], "size 99999: its costs take 75 GiB; give up to 32768"),
        (["--sizes", "8", "8"], "size 8 is given twice; keep one and raise the count"),
        (["--count", "-2"], "count -2: give a whole number of 1 or more"),
        (["--seed", "-1"], "seed -1: give a whole number of 0 or more"),
        (["-p", "density=2"], "density=2 of family 'sparse': give a number from 1e-06 to 1"),
        (["--families", "uniform", "-p", "density=0.2"], "'density': none of the families uniform has it"),
        (["-p", "density"], "'density' has no name=number form"),
    ],
)
def test_wrong_options_of_generate_are_one_line_and_leave_no_file(tmp_path: Path, words: list[str], text: str) -> None:
    error = _kdgat("generate", "--out", tmp_path / "a.h5", *words, status=1).stderr
    assert text in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_replaced_only_when_told(generated: Path, tmp_path: Path) -> None:
    before = generated.read_bytes()
    assert "--force" in _kdgat("generate", "--out", generated, status=1).stderr
    assert "--force" in _kdgat("merge", "--out", generated, generated, status=1).stderr
    assert "is a folder" in _kdgat("generate", "--out", tmp_path, status=1).stderr
    assert generated.read_bytes() == before
    path = tmp_path / "a.h5"
    for families in ("metric", "tie"):
        _kdgat("generate", "--out", path, "--families", families, "--sizes", 5, "--count", 1, "--force")
    assert LapStore.open(path).families() == ["tie"]


def test_merge_then_bucket_then_inspect(generated: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.h5"
    _kdgat("generate", "--out", more, "--families", "uniform", "--sizes", 8, "--count", 14, "--seed", 3)
    answer = _kdgat("merge", "--out", tmp_path / "all.h5", generated, more).stdout
    assert f"{more}: 10 duplicates left out" in answer
    assert "44 of 54 records, 10 duplicates left out, seeded" in answer
    answer = _kdgat("bucket", tmp_path / "all.h5", "--out", tmp_path / "data", "--seed", 42).stdout
    assert answer.splitlines()[1].split() == ["small", "31", "8", "5"]
    assert "44 of 44 records, seed 42" in answer
    assert "--force" in _kdgat("bucket", tmp_path / "all.h5", "--out", tmp_path / "data", status=1).stderr
    _kdgat("bucket", tmp_path / "all.h5", "--out", tmp_path / "data", "--force")
    total = 0
    for split in ("train", "val", "test"):
        path = tmp_path / "data" / "small" / "full" / f"{split}.h5"
        found = json.loads(_kdgat("inspect", path, "--check", "--sample", 0, "--json").stdout)
        assert found["num_checked"] == found["num_records"]
        assert found["problems"] == []
        total += found["num_records"]
    assert total == 44


def test_inspect_shows_families_by_size_and_fails_where_a_label_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    _kdgat("generate", "--out", path, "--families", "metric", "tie", "--sizes", 6, 9, "--count", 2)
    lines = _kdgat("inspect", path, "--check").stdout.splitlines()
    assert lines[0].startswith(f"{path}: 8 records, seeded, schema 2, ")
    assert [line.split() for line in lines[1:4]] == [
        ["family", "n=6", "n=9", "all"],
        ["metric", "2", "2", "4"],
        ["tie", "2", "2", "4"],
    ]
    assert lines[4] == "checked 8 records: 8 proved optimal, 0 wrong"
    with h5py.File(path, "r+") as file:
        file["cost"][1] += 0.5
    answer = _kdgat("inspect", path, "--check", status=1).stdout
    assert "record 1 (tie, n=6)" in answer
    assert "checked 8 records: 7 proved optimal, 1 wrong" in answer
    _kdgat("inspect", path)


def test_inspect_of_many_sizes_shows_their_range(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    _kdgat("generate", "--out", path, "--families", "metric", "--sizes", *range(2, 12), "--count", 1)
    lines = _kdgat("inspect", path).stdout.splitlines()
    assert [lines[1].split(), lines[2].split()] == [
        ["family", "least", "n", "greatest", "n", "all"],
        ["metric", "2", "11", "10"],
    ]


def test_old_files_are_merged_and_big_numbers_pointed_out(tmp_path: Path) -> None:
    old = write_schema1(tmp_path / "old.h5", [label(generate("sparse", 9, seed)) for seed in range(2)])
    result = _kdgat("merge", "--out", tmp_path / "new.h5", old)
    assert "merge with --forbidden-from 1e+06" in result.stderr
    assert "--storage dense" in _kdgat("merge", "--out", tmp_path / "b.h5", old, "--storage", "seeded", status=1).stderr
    _kdgat("merge", "--out", tmp_path / "new.h5", old, "--forbidden-from", "1e6", "--force")
    assert LapStore.open(tmp_path / "new.h5").record(0).mask is not None
    assert "rewrite it with kdgat lap merge" in _kdgat("bucket", old, "--out", tmp_path / "out", status=1).stderr
    assert "schema 1" in _kdgat("inspect", old).stdout


def test_import_brings_own_matrices_into_a_file_that_can_be_split(tmp_path: Path) -> None:
    for place in range(4):
        np.save(tmp_path / f"{place}.npy", np.random.default_rng(place).random((6, 6)))
    files = [tmp_path / f"{place}.npy" for place in range(4)]
    answer = _kdgat("import", "--out", tmp_path / "own.h5", "--family", "mine", *files).stdout
    assert answer.startswith(f"{tmp_path / 'own.h5'}: 4 instances (mine), dense, ")
    alone = _kdgat("import", "--out", tmp_path / "one.h5", files[0]).stdout
    assert alone.startswith(f"{tmp_path / 'one.h5'}: 1 instance (imported), dense, ")
    _kdgat("bucket", tmp_path / "own.h5", "--out", tmp_path / "data")
    assert "checked 2 records: 2 proved" in _kdgat("inspect", tmp_path / "data/small/full/train.h5", "--check").stdout
    np.save(files[0], np.ones((2, 3)))
    error = _kdgat("import", "--out", tmp_path / "b.h5", *files, status=1).stderr
    assert f"{files[0]}: 2 x 3" in error


@pytest.mark.parametrize("command", ["merge", "bucket", "inspect"])
def test_files_that_are_no_store_are_refused_in_one_line(generated: Path, tmp_path: Path, command: str) -> None:
    out = [] if command == "inspect" else ["--out", tmp_path / "out"]
    (tmp_path / "cut.h5").write_bytes(generated.read_bytes()[:3000])
    (tmp_path / "text.h5").write_text("text")
    for name, text in (("cut.h5", "damaged or truncated"), ("text.h5", "not an HDF5 file"), ("no.h5", "no such file")):
        error = _kdgat(command, tmp_path / name, *out, status=1).stderr
        assert f"{tmp_path / name}: {text}" in error
        assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_solve_reads_what_generate_writes(generated: Path) -> None:
    answer = json.loads(_kdgat("solve", generated, "--index", 5, "--json").stdout)
    assert answer["cost"] == pytest.approx(LapStore.open(generated).record(5).optimum)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.processes
def test_a_generation_that_is_stopped_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    words = ["lap", "generate", "--out", str(tmp_path / "a.h5"), "--families", "uniform", "--sizes", "60"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kdgat.cli.main", *words, "--count", "1000000", "--storage", "dense"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: any(entry.stat().st_size > 1_000_000 for entry in tmp_path.iterdir()), "a megabyte")
        process.send_signal(number)
        assert process.wait(timeout=60.0) != 0
    finally:
        process.kill()
        process.wait()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_a_library_swallows_stops_at_the_next_record(number: signal.Signals) -> None:
    before = signal.getsignal(signal.SIGINT)
    with _counted("testing", 3, True) as count:
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            signal.raise_signal(number)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            count()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(("number", "left_by"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_that_a_library_makes_an_error_of_stops_all_the_same(
    number: signal.Signals, left_by: type[BaseException]
) -> None:
    def loaded() -> None:
        try:
            signal.raise_signal(number)
        except BaseException as stop:
            raise SystemError("returned a result with an exception set") from stop

    with pytest.raises(left_by), _counted("testing", 3, True):
        loaded()
    with pytest.raises(SystemError, match="of its own"), _counted("testing", 3, True):
        raise SystemError("of its own")


def test_long_work_says_how_far_it_is_on_standard_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdgat.cli.lap.PLAIN_INTERVAL_S", 0.0)
    words = ("--families", "tie", "--sizes", 5, "--count", 3, "--force")
    result = _kdgat("generate", "--out", tmp_path / "a.h5", *words)
    assert [line.split(" ", 1)[1] for line in result.stderr.splitlines()] == [
        f"generating: {done} of 3" for done in (1, 2, 3)
    ]
    assert _kdgat("generate", "--out", tmp_path / "a.h5", *words, "--quiet").stderr == ""


def test_costs_do_not_depend_on_which_storage_kept_them(tmp_path: Path) -> None:
    for storage in ("seeded", "dense"):
        _kdgat("generate", "--out", tmp_path / f"{storage}.h5", "--sizes", 7, "--count", 1, "--storage", storage)
    seeded, dense = (LapStore.open(tmp_path / f"{storage}.h5") for storage in ("seeded", "dense"))
    assert len(seeded) == 10
    for index in range(10):
        assert np.array_equal(seeded.cost(index)[0], dense.cost(index)[0])
