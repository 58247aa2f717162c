"""Inputs on a fast disk: copied once, checked, shared, removed by who was last, and left where they are if need be."""

import fcntl
import logging
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from kdgat.stage import Finished, RunDirectory, StageInput, StageSpec, staging
from kdgat.stage.runner import run_stage
from kdgat.stage.staging import CACHE_VARIABLE, staged

HOLDER = """
import os, sys, time
from pathlib import Path
from kdgat.stage.directory import RunDirectory
from kdgat.stage.staging import staged
directory = RunDirectory(sys.argv[1])
with staged(directory.read_spec(), directory):
    print("staged", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def make_stage(folder: Path, name: str = "a", files=("store", "weights")) -> tuple[StageSpec, RunDirectory]:
    inputs = {}
    for file in files:
        path = folder / "inputs" / file
        path.parent.mkdir(exist_ok=True, parents=True)
        if not path.exists():
            path.write_bytes(file.encode() * 100_000)
        inputs[file.partition(".")[0] + file.partition(".")[2]] = StageInput.of_file(path)
    spec = StageSpec(family="can", stage="normal", seed=0, inputs=inputs)
    return spec, RunDirectory(folder / name).create(spec)


def files_in(cache: Path) -> list[str]:
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())


def test_without_a_cache_the_spec_stays_as_it_is(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    spec, directory = make_stage(tmp_path)
    with staged(spec, directory, {}) as used:
        assert used is spec


def test_the_former_name_of_the_variable_is_answered_with_todays(tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.delenv("KDGAT_CACHE_ROOT", raising=False)
    monkeypatch.setenv("KD_GAT_CACHE_ROOT", str(tmp_path / "cache"))
    spec, directory = make_stage(tmp_path)
    with staged(spec, directory) as used:
        assert used is spec
    assert "KD_GAT_CACHE_ROOT is not read, inputs are read where they are: set KDGAT_CACHE_ROOT" in caplog.text
    assert not (tmp_path / "cache").exists()


def test_inputs_are_read_from_the_cache_and_nothing_is_left_of_it(tmp_path, cache) -> None:
    spec, directory = make_stage(tmp_path)
    with staged(spec, directory) as used:
        for name, source in used.inputs.items():
            path = source.resolve(directory.path)
            assert path.is_relative_to(cache)
            assert path.read_bytes() == spec.inputs[name].resolve(directory.path).read_bytes()
        assert used.identity() == spec.identity()
    assert files_in(cache) == []
    assert directory.work.staged_bytes == 1_200_000
    assert directory.work.staged_s > 0


def test_files_that_lie_beside_each_other_do_so_in_the_cache(tmp_path, cache) -> None:
    spec, directory = make_stage(tmp_path, files=("lines.shp", "lines.shx"))
    with staged(spec, directory) as used:
        paths = [source.resolve(directory.path) for source in used.inputs.values()]
        assert [path.name for path in paths] == ["lines.shp", "lines.shx"]
        assert len({path.parent for path in paths}) == 1


def test_what_another_stage_has_copied_is_shared_and_stays_until_the_last_one_ends(tmp_path, cache) -> None:
    spec, directory = make_stage(tmp_path)
    _, other = make_stage(tmp_path, "b")
    first = staged(spec, directory)
    with first, staged(spec, other) as used:
        assert other.work.staged_bytes == 0
        first.__exit__(None, None, None)
        assert all(source.resolve(other.path).is_file() for source in used.inputs.values())
        assert len(list((cache / "content").iterdir())) == 2
    assert files_in(cache) == []


def test_a_damaged_copy_is_copied_again(tmp_path, cache, caplog) -> None:
    spec, directory = make_stage(tmp_path)
    _, other = make_stage(tmp_path, "b")
    with staged(spec, directory):
        damaged = cache / "content" / spec.inputs["store"].sha256
        damaged.write_bytes(b"x")
        with staged(spec, other) as used:
            assert used.inputs["store"].resolve(other.path).read_bytes() == b"store" * 100_000
    assert "is damaged: copied again" in caplog.text


def test_an_input_that_changes_while_it_is_copied_is_not_used_from_there(tmp_path, cache, caplog) -> None:
    spec, directory = make_stage(tmp_path)
    (tmp_path / "inputs" / "store").write_bytes(b"changed")
    with staged(spec, directory) as used:
        assert used is spec
    assert "has changed while it was copied" in caplog.text
    assert files_in(cache) == []


def test_where_the_disk_is_too_small_inputs_are_read_in_place_and_the_log_says_so(
    tmp_path, cache, monkeypatch, caplog
) -> None:
    spec, directory = make_stage(tmp_path)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10_000_000, 9_000_000, 1_000_000))
    with staged(spec, directory) as used:
        assert used is spec
    assert "0.0012 GB are to be copied, 0.0005 GB are free" in caplog.text


def test_a_cache_that_cannot_be_made_is_left_out(tmp_path, monkeypatch, caplog) -> None:
    (tmp_path / "file").write_text("in the way")
    spec, directory = make_stage(tmp_path)
    with staged(spec, directory, {CACHE_VARIABLE: str(tmp_path / "file" / "cache")}) as used:
        assert used is spec
    assert "inputs are read where they are" in caplog.text


@pytest.mark.processes
def test_what_a_killed_stage_has_left_is_removed_by_the_next_one(tmp_path, cache) -> None:
    _, directory = make_stage(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(directory.path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "staged\n"
    assert len(list((cache / "stages").iterdir())) == 1
    other_spec, other = make_stage(tmp_path, "b", files=("another",))
    with staged(other_spec, other):  # the one that runs keeps what it has
        assert len(list((cache / "content").iterdir())) == 3
    process.kill()
    process.wait()
    process.stdout.close()
    (cache / "content" / f"{'0' * 64}.tmp").write_bytes(b"half a file")
    with staged(other_spec, other):
        assert [path.name for path in (cache / "content").iterdir()] == [other_spec.inputs["another"].sha256]
    assert files_in(cache) == []


@pytest.mark.processes
def test_stages_that_start_together_copy_each_file_once(tmp_path, cache) -> None:
    stages = [make_stage(tmp_path, name) for name in "abcd"]
    processes = [
        subprocess.Popen([sys.executable, "-c", HOLDER, str(directory.path)], stdout=subprocess.PIPE, text=True)
        for _, directory in stages
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "staged\n"
    assert [path.stat().st_nlink for path in (cache / "content").iterdir()] == [5, 5]
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_filesystem_without_locks_is_not_used(tmp_path, cache, monkeypatch, caplog) -> None:
    def refuse(*_):
        raise OSError(staging.errno.ENOTSUP, "no locks")

    spec, directory = make_stage(tmp_path)
    monkeypatch.setattr(fcntl, "flock", refuse)
    with staged(spec, directory) as used:
        assert used is spec
    assert "without locks" in caplog.text


def test_a_stage_gets_the_inputs_of_the_cache(tmp_path, cache, monkeypatch, caplog) -> None:
    package = tmp_path / "package" / "copied_inputs"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "stages.py").write_text(
        "from kdgat.stage.outcome import Finished\n"
        "def run(spec, directory):\n"
        "    (directory.path / 'read').write_text(str(spec.inputs['store'].resolve(directory.path)))\n"
        "    return Finished(artifacts={'read': 'read'})\n"
    )
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr("kdgat.stage.runner.family_package", lambda name: name)
    spec, _ = make_stage(tmp_path)
    directory = RunDirectory(tmp_path / "run").create(spec.model_copy(update={"family": "copied_inputs"}))
    with caplog.at_level(logging.INFO):
        assert isinstance(run_stage(directory), Finished)
    assert (directory.path / "read").read_text().startswith(str(cache))
    assert directory.read_work().staged_bytes == 1_200_000
    assert files_in(cache) == []


def test_what_another_node_has_is_left_alone_until_it_is_very_old(tmp_path, cache) -> None:
    spec, directory = make_stage(tmp_path)
    folder = cache / "stages" / "another-node-7-abc" / "0"
    (cache / "content").mkdir(parents=True)
    folder.mkdir(parents=True)
    (cache / "content" / ("0" * 64)).write_text("theirs")
    os.link(cache / "content" / ("0" * 64), folder / "store")
    with staged(spec, directory):
        assert (folder / "store").exists()
    os.utime(folder.parent, (0, 0))
    with staged(spec, directory):
        assert not folder.exists()
        assert not (cache / "content" / ("0" * 64)).exists()


def test_a_file_whose_stage_was_killed_before_it_had_a_link_is_removed(tmp_path, cache) -> None:
    spec, directory = make_stage(tmp_path)
    (cache / "content").mkdir(parents=True)
    (cache / "content" / ("0" * 64)).write_text("nobody's")
    with staged(spec, directory):
        assert len(list((cache / "content").iterdir())) == 2


@pytest.mark.parametrize("name", ["", "content", "stages", "locks"])
def test_a_link_in_place_of_the_cache_is_not_followed_and_nothing_behind_it_is_removed(
    tmp_path, cache, caplog, name
) -> None:
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "chapter").write_text("years of work")
    (cache / name).parent.mkdir(exist_ok=True)
    (cache / name).symlink_to(thesis)
    spec, directory = make_stage(tmp_path)
    with staged(spec, directory) as used:
        assert used is spec
    assert files_in(thesis) == ["chapter"]
    assert "is a link, of another user, or writable for everybody: remove it" in caplog.text


def test_a_folder_of_another_user_is_not_used(tmp_path, cache, caplog, monkeypatch) -> None:
    cache.mkdir(mode=0o777)
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    spec, directory = make_stage(tmp_path)
    with staged(spec, directory) as used:
        assert used is spec
    assert "is a link, of another user" in caplog.text


def test_a_folder_that_everybody_may_write_to_is_not_used(tmp_path, cache, caplog) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    spec, directory = make_stage(tmp_path)
    with staged(spec, directory) as used:
        assert used is spec
    assert "writable for everybody: remove it" in caplog.text


def test_a_file_that_no_stage_has_put_there_stays(tmp_path, cache) -> None:
    (cache / "content").mkdir(parents=True)
    (cache / "content" / "chapter").write_text("years of work")
    spec, directory = make_stage(tmp_path)
    with staged(spec, directory):
        pass
    assert files_in(cache) == ["content/chapter"]


def test_a_lock_that_somebody_keeps_is_not_waited_for_without_end(tmp_path, cache, monkeypatch, caplog) -> None:
    monkeypatch.setattr(staging, "LOCK_TIMEOUT_S", 0.2)
    spec, directory = make_stage(tmp_path)
    (cache / "locks").mkdir(parents=True)
    with (cache / "locks" / spec.inputs["store"].sha256).open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with staged(spec, directory) as used:
            assert used is spec
    assert "somebody keeps its lock" in caplog.text


def test_who_leaves_does_not_wait_for_another_that_keeps_a_lock_and_the_next_one_removes_its_links(
    tmp_path, cache, monkeypatch, caplog
) -> None:
    waited_s = []

    def wait(condition, limit_s, poll_s):
        waited_s.append(limit_s)
        return condition()

    spec, directory = make_stage(tmp_path)
    with staged(spec, directory) as used:
        held = (cache / "locks" / spec.inputs["store"].sha256).open("a")
        fcntl.flock(held, fcntl.LOCK_EX)
        monkeypatch.setattr(staging, "wait_until", wait)
    assert max(waited_s) < 10
    assert [source.resolve(directory.path).exists() for source in used.inputs.values()] == [True, False]
    assert "is left behind" in caplog.text
    held.close()
    with staged(*make_stage(tmp_path, "b")):
        pass
    assert files_in(cache) == []


@pytest.mark.processes
def test_a_signal_ends_the_wait_for_another_that_copies_and_pauses_the_stage(tmp_path, cache) -> None:
    spec, directory = make_stage(tmp_path)
    (cache / "locks").mkdir(parents=True)
    with (cache / "locks" / spec.inputs["store"].sha256).open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        script = (
            "import os, signal, sys\n"
            "from kdgat.stage import RunDirectory, staging\n"
            "from kdgat.stage.runner import run_stage\n"
            "def wait(condition, limit_s, poll_s):\n"
            "    if limit_s == staging.LOCK_TIMEOUT_S:\n"
            "        os.kill(os.getpid(), signal.SIGTERM)\n"
            "    return condition()\n"
            "staging.wait_until = wait\n"
            "print(run_stage(RunDirectory(sys.argv[1]), quiet=True).status)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, directory.path], capture_output=True, text=True, check=True, timeout=120
        )
    assert done.stdout.strip() == "paused"
