"""What a night finds: new and changed recordings, by content, in an inbox and in the dataset's folder."""

import errno
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kdgat.base import UserError, sha256_of_file
from kdgat.can.config import DataConfig
from kdgat.can.nightly import new_recordings
from kdgat.can.nightly.new_recordings import NewRecordings, NightlyLedger, gather_new_recordings, holds_files
from kdgat.canbus import find_recordings, read_recording, write_recording
from kdgat.canbus.catalog import DatasetError, walk_recordings
from kdgat.canbus.reading import Answer, ReadingProcess, ReadingRequest
from tests.canbus.recording_files import random_messages, write_text

LONG_AGO = time.time() - 3600.0


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


class Places:
    """A data root, an inbox, and the nights that look at them."""

    def __init__(self, path: Path, reader: ReadingProcess) -> None:
        self.reader = reader
        self.noted = ""
        self.being_read = path / "being-read.json"
        self.data_root = path / "data"
        self.folder = self.data_root / "cars"
        self.inbox = path / "inbox"
        self.ledger_path = path / "nightly.json"
        self.inbox.mkdir()
        for scenario, name, seed in (("train_1", "free", 0), ("train_1", "dos", 1), ("test_1", "fuzzy", 2)):
            self.put(self.folder / f"{scenario}__{name}.parquet", seed)

    def put(self, path: Path, seed: int = 0, *, age_s: float = 3600.0, labelled: bool = True) -> Path:
        messages = random_messages(40, seed)
        messages.labelled = labelled
        messages.scenario, messages.name = path.stem.partition("__")[::2]
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".parquet":
            write_recording(path, messages)
        else:
            write_text(path, messages, "can-train-and-test.csv")
        os.utime(path, (time.time() - age_s,) * 2)
        return path

    def night(
        self, *, hold_out: Sequence[str] = (), done: bool = True, settle_s: float = 60.0, **others: Any
    ) -> NewRecordings:
        data = DataConfig(dataset="cars", data_root=str(self.data_root), hold_out=tuple(hold_out), **others)
        ledger = NightlyLedger.read(self.ledger_path)
        found = gather_new_recordings(data, self.inbox, ledger, settle_s, self.reader, self.being_read)
        if done:
            ledger.done = found.recordings
        ledger.write(self.ledger_path)
        return found


class InThisProcess(ReadingProcess):
    """Read where the test is, which is quicker, and can be interrupted; the real one has tests of its own."""

    def ask(self, request: ReadingRequest) -> Answer:
        return Answer(request.refusal())


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path, InThisProcess())


def test_at_first_everything_is_new_and_then_nothing_is(places: Places) -> None:
    names = ["test_1__fuzzy.parquet", "train_1__dos.parquet", "train_1__free.parquet"]
    assert places.night(done=False).new == names
    assert places.night().new == names  # the night before did not complete
    assert not places.night().is_any


def test_a_file_that_was_only_touched_is_no_news(places: Places) -> None:
    places.night()
    for path in places.folder.iterdir():
        path.write_bytes(path.read_bytes())
        os.utime(path, (LONG_AGO, LONG_AGO))
    assert not places.night().is_any


def test_both_layouts_of_an_inbox_are_imported_and_not_again(places: Places) -> None:
    places.night()
    places.put(places.inbox / "train_1__late.csv", 5)
    places.put(places.inbox / "test_2" / "rain.parquet", 6)
    places.put(places.inbox / "test_2" / "monday" / "snow.parquet", 7)
    new_recordings = places.night(done=False)
    assert new_recordings.new == ["test_2__monday-snow.parquet", "test_2__rain.parquet", "train_1__late.parquet"]
    assert set(new_recordings.imported) == {"test_2/monday/snow.parquet", "test_2/rain.parquet", "train_1__late.csv"}
    files = {path: path.stat().st_mtime_ns for path in places.folder.iterdir()}
    again = places.night()
    assert again.new == new_recordings.new  # news until a night completes
    assert again.imported == {}
    assert {path: path.stat().st_mtime_ns for path in places.folder.iterdir()} == files
    assert not places.night().is_any
    assert (places.inbox / "train_1__late.csv").is_file()  # the inbox is left as it was
    scenarios = {file.scenario for file in find_recordings(places.data_root, "cars")}
    assert scenarios == {"train_1", "test_1", "test_2"}


def test_a_recording_that_comes_anew_takes_the_place_of_the_old_one(places: Places) -> None:
    places.put(places.folder / "train_1" / "old.csv", 3)
    places.night()
    places.put(places.inbox / "train_1__dos.parquet", 10)
    places.put(places.inbox / "train_1" / "old.csv", 11)
    new_recordings = places.night()
    assert new_recordings.changed == ["train_1__dos.parquet"]
    assert new_recordings.new == ["train_1__old.parquet"]
    assert new_recordings.gone == ["train_1/old.csv"]
    assert (places.folder / ".replaced" / "train_1" / "old.csv").is_file()
    found = {file.name: file.content_hash for file in find_recordings(places.data_root, "cars")}
    assert found["dos"] == random_messages(40, 10).content_hash()
    assert len(found) == 4
    # A file of the same traffic in the same format as it has already changes nothing.
    places.put(places.inbox / "train_1__free.parquet", 0)
    assert not places.night().is_any
    assert not list((places.folder / ".replaced").glob("*free*"))


def test_every_file_that_was_replaced_is_kept(places: Places) -> None:
    places.night()
    kept = {(places.folder / "train_1__dos.parquet").read_bytes()}
    for seed in (10, 11):
        places.put(places.inbox / "train_1__dos.parquet", seed)
        assert places.night().changed == ["train_1__dos.parquet"]
        replaced = {path.read_bytes() for path in (places.folder / ".replaced").iterdir()}
        assert replaced == kept
        kept.add((places.folder / "train_1__dos.parquet").read_bytes())
    assert len(kept) == 3


def test_a_kill_before_the_new_file_is_there_leaves_the_old_one_in_place(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    places.night()
    path = places.folder / "train_1__dos.parquet"
    before = path.read_bytes()
    places.put(places.inbox / path.name, 10)
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", interrupted)
            with pytest.raises(KeyboardInterrupt):
                places.night()
        assert path.read_bytes() == before
    places.night()
    assert read_recording(path).content_hash() == random_messages(40, 10).content_hash()
    assert [kept.read_bytes() for kept in (places.folder / ".replaced").iterdir()] == [before]


def test_a_file_that_is_still_being_written_waits(places: Places) -> None:
    places.night()
    path = places.put(places.inbox / "train_1__late.parquet", 5, age_s=1.0)
    new_recordings = places.night()
    assert not new_recordings.is_any
    assert new_recordings.waiting == ["train_1__late.parquet"]
    os.utime(path, (LONG_AGO, LONG_AGO))
    assert places.night().new == ["train_1__late.parquet"]
    places.put(path, 6, age_s=1.0)  # changed, and again not complete
    assert not places.night().is_any
    assert places.night(settle_s=0.0).changed == ["train_1__late.parquet"]


def test_a_file_that_is_being_copied_into_the_datasets_own_folder_waits_and_is_left_out(places: Places) -> None:
    places.night()
    growing = places.put(places.folder / "train_1__late.parquet", 5, age_s=1.0)
    whole = growing.read_bytes()
    growing.write_bytes(whole[: len(whole) // 2])
    replaced = places.put(places.folder / "train_1__dos.parquet", 6, age_s=1.0)
    touched = places.folder / "train_1__free.parquet"
    touched.touch()
    new_recordings = places.night()
    assert not new_recordings.is_any
    assert not new_recordings.refused
    assert not new_recordings.gone
    assert new_recordings.waiting == [str(replaced), str(growing)]
    assert new_recordings.leave_out == (replaced.name, growing.name)
    assert new_recordings.recordings.keys() == {touched.name, "test_1__fuzzy.parquet"}  # known as they were

    growing.write_bytes(whole)
    for path in (growing, replaced):
        os.utime(path, (LONG_AGO, LONG_AGO))
    assert places.night().new == [replaced.name, growing.name]


def test_a_file_of_the_datasets_folder_that_cannot_be_read_is_named_and_left_out(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    places.night()
    path = places.put(places.folder / "train_1__locked.parquet", 5)

    def refuse(asked: Path) -> str:
        if asked == path:  # root, as which tests may run, may read everything
            raise PermissionError(errno.EACCES, "Permission denied", str(asked))
        return sha256_of_file(asked)

    with monkeypatch.context() as patch:
        patch.setattr("kdgat.can.nightly.new_recordings.sha256_of_file", refuse)
        new_recordings = places.night()
    assert new_recordings.leave_out == (path.name,)
    assert "Permission denied" in new_recordings.refused[str(path)]
    assert not new_recordings.is_any
    assert places.night().new == [path.name]


def test_what_the_night_itself_imports_need_not_settle(places: Places) -> None:
    places.night()
    places.put(places.inbox / "train_1__late.csv", 5)
    new_recordings = places.night(done=False)
    assert new_recordings.new == ["train_1__late.parquet"]
    assert not new_recordings.waiting
    assert places.night().new == ["train_1__late.parquet"]  # the night after one that failed at once


def test_a_file_of_the_future_does_not_wait_for_it(places: Places) -> None:
    places.night()
    tomorrow = -86400.0
    places.put(places.inbox / "train_1__late.parquet", 5, age_s=tomorrow)
    places.put(places.folder / "train_1__later.parquet", 6, age_s=tomorrow)
    assert len(places.night().waiting) == 2
    time.sleep(0.2)
    assert places.night(settle_s=0.1).new == ["train_1__late.parquet", "train_1__later.parquet"]


def test_what_cannot_be_used_is_named_stands_in_nobodys_way_and_is_tried_again_when_it_changes(places: Places) -> None:
    places.night()
    broken = places.inbox / "train_1__broken.parquet"
    broken.write_bytes(b"PAR1 and nothing more")
    stray = places.put(places.inbox / "stray.parquet", 4)
    unlabelled = places.put(places.inbox / "train_1__unlabelled.parquet", 5, labelled=False)
    good = places.put(places.inbox / "test_1__good.parquet", 6)
    both = places.put(places.inbox / "test_1__good.csv", 8)
    for path in places.inbox.iterdir():
        os.utime(path, (LONG_AGO, LONG_AGO))
    before = set(places.folder.iterdir())
    new_recordings = places.night()
    assert len(new_recordings.new) == 1
    assert set(places.folder.iterdir()) - before == {places.folder / "test_1__good.parquet"}
    assert new_recordings.refused.keys() == {str(path) for path in (broken, stray, unlabelled, max(good, both))}
    assert "no scenario in its name" in new_recordings.refused[str(stray)]
    assert "no labels" in new_recordings.refused[str(unlabelled)]
    assert "same recording of the same scenario" in new_recordings.refused[str(max(good, both))]
    assert "Parquet" in new_recordings.refused[str(broken)]

    assert set(new_recordings.newly_refused) == new_recordings.refused.keys()
    assert not new_recordings.all_refused

    again = places.night()
    assert again.refused == new_recordings.refused  # still said
    assert not again.is_any
    assert not again.newly_refused
    places.put(broken, 9)
    assert places.night().new == ["train_1__broken.parquet"]


def test_what_was_refused_is_judged_anew_every_night(places: Places) -> None:
    places.night()
    messages = read_recording(places.folder / "train_1__dos.parquet")
    for path in (places.inbox / "train_1__rough.csv", places.folder / "train_1__bumpy.csv"):
        write_text(path, messages, "can-train-and-test.csv")
        with path.open("a") as file:
            file.write("no,message\n" * 20)
        os.utime(path, (LONG_AGO, LONG_AGO))
    assert len(places.night().refused) == 2
    new_recordings = places.night(max_bad_fraction=0.5)  # as the reason says
    assert new_recordings.new == ["train_1__bumpy.csv", "train_1__rough.parquet"]
    assert not new_recordings.refused
    assert not places.night(max_bad_fraction=0.5).is_any
    assert places.night().leave_out == ("train_1__bumpy.csv",)  # in the other one no bad row is left


def test_a_recording_without_labels_is_refused_from_the_night_on_in_which_it_would_train(
    places: Places, tmp_path: Path
) -> None:
    inside = places.put(places.folder / "test_1__open.parquet", 5, labelled=False)
    places.put(places.inbox / "test_1__wide.parquet", 6, labelled=False)
    assert not places.night().refused
    catalog = tmp_path / "catalog.yaml"
    catalog.write_text("cars: {train_scenarios: ['*_1']}\n")
    for terms in ({"catalog": str(catalog)}, {"hold_out": ["fuzzy"]}):
        new_recordings = places.night(done=False, **terms)
        assert new_recordings.leave_out == (inside.name, "test_1__wide.parquet")
        assert "no labels" in new_recordings.refused[str(inside)]
        assert not places.night(done=False).refused


def test_the_other_of_two_files_of_one_recording_is_imported_when_the_first_is_gone(places: Places) -> None:
    first = places.put(places.inbox / "test_1__good.csv", 6)
    places.put(places.inbox / "test_1__good.parquet", 8)
    assert len(places.night().refused) == 1
    assert len(places.night().refused) == 1
    first.unlink()
    new_recordings = places.night()
    assert (new_recordings.changed, new_recordings.refused) == (["test_1__good.parquet"], {})


def test_unusable_files_of_the_datasets_folder_are_left_out(places: Places) -> None:
    (places.folder / "train_1__half.parquet").write_bytes(b"half a file")
    (places.folder / "notes.csv").write_text("what somebody left here")
    places.put(places.folder / "train_1__unlabelled.parquet", 5, labelled=False)
    places.put(places.folder / "test_1__unlabelled.parquet", 6, labelled=False)
    new_recordings = places.night()
    assert new_recordings.leave_out == ("notes.csv", "train_1__half.parquet", "train_1__unlabelled.parquet")
    assert "test_1__unlabelled.parquet" in new_recordings.new
    found = find_recordings(places.data_root, "cars", leave_out=new_recordings.leave_out)
    assert len(found) == len(new_recordings.recordings) == 4
    with pytest.raises(DatasetError, match="no scenario"):
        find_recordings(places.data_root, "cars")


def test_labels_are_asked_of_what_trains_whatever_is_held_out(places: Places) -> None:
    places.put(places.folder / "test_1__open.parquet", 5, labelled=False)
    places.put(places.folder / "train_1__closed.parquet", 6, labelled=False)
    assert places.night(hold_out=["closed"]).leave_out == ("test_1__open.parquet",)


def test_a_broken_recording_is_left_out_until_it_is_mended_and_one_that_breaks_is_too(places: Places) -> None:
    places.night()
    path = places.folder / "train_1__dos.parquet"
    shutil.copy(path, places.data_root / "aside")
    path.write_bytes(b"cut off")
    os.utime(path, (LONG_AGO, LONG_AGO))
    new_recordings = places.night()
    assert new_recordings.refused.keys() == {str(path)}
    assert new_recordings.leave_out == (path.name,)
    assert not new_recordings.is_any
    shutil.copy(places.data_root / "aside", path)
    os.utime(path, (LONG_AGO, LONG_AGO))
    assert places.night().new == [path.name]
    assert read_recording(path).num_messages


def test_the_first_recordings_of_a_dataset_may_come_by_the_inbox(places: Places) -> None:
    for path in places.folder.iterdir():
        path.rename(places.inbox / path.name)
    places.folder.rmdir()
    assert len(places.night().new) == 3


def test_what_nfs_keeps_of_a_removed_file_is_no_file_of_an_inbox(places: Places) -> None:
    (places.inbox / "test_a").mkdir()
    (places.inbox / "test_a" / ".nfs0000000000a0").touch()
    assert not holds_files(places.inbox)
    (places.inbox / "test_a" / "drive.log").touch()
    assert holds_files(places.inbox)


def test_an_inbox_that_is_missing_is_made(places: Places) -> None:
    places.inbox.rmdir()
    assert not places.night().refused
    assert places.inbox.is_dir()


def test_every_file_of_the_inbox_is_used_or_refused_with_what_to_do(places: Places) -> None:
    places.night()
    notes, table, fresh = (places.inbox / name for name in ("notes.txt", "day1/drives.xlsx", "train_1__new.csv.part"))
    for path in (notes, table, fresh, places.inbox / ".hidden", places.inbox / ".git" / "config"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("on Monday it rained")
        if path != fresh:
            os.utime(path, (LONG_AGO, LONG_AGO))
    night = places.night()
    assert night.waiting == [fresh.name]  # a program that copies names it otherwise until it is whole
    assert night.refused.keys() == {str(notes), str(table)}
    assert "no scenario in its name" in night.refused[str(notes)]
    assert "remove it" in night.refused[str(notes)]
    assert "is no recording (has an unknown format" in night.refused[str(table)]


def test_a_night_of_which_every_file_is_refused_is_told_from_one_that_only_repeats_it(places: Places) -> None:
    places.night()
    broken = places.inbox / "train_1__broken.parquet"
    broken.write_bytes(b"no parquet")
    night = places.night(settle_s=0.0)
    assert night.all_refused
    assert night.describe_refusals().startswith(f"{broken}: ")
    assert not places.night(settle_s=0.0).all_refused
    broken.write_bytes(b"no parquet either")  # another file of the same name
    assert places.night(settle_s=0.0).all_refused
    other = places.put(places.inbox / "train_1__good.parquet", 9)
    (places.inbox / "notes.txt").write_text("")
    night = places.night(settle_s=0.0)
    assert night.new == [other.name]
    assert night.newly_refused == (str(places.inbox / "notes.txt"),)
    assert not night.all_refused


def test_folders_that_cannot_be_meant_are_named(places: Places) -> None:
    data = DataConfig(dataset="cars", data_root=str(places.data_root))
    for inbox, words in (
        (places.put(places.inbox / "train_1__file.parquet", 4), "cannot be made"),
        (places.folder, "another folder"),
        (places.data_root, "another folder"),
        (places.folder / "train_1", "another folder"),
    ):
        if words == "another folder":
            inbox.mkdir(exist_ok=True)
        with pytest.raises(UserError, match=words):
            gather_new_recordings(data, inbox, NightlyLedger(), 0.0, places.reader, places.being_read)
    data = data.model_copy(update={"dataset": "trucks"})
    with pytest.raises(UserError, match="no such folder"):
        gather_new_recordings(data, None, NightlyLedger(), 0.0, places.reader, places.being_read)


def test_a_damaged_ledger_is_named(places: Places) -> None:
    places.ledger_path.write_text("{")
    with pytest.raises(UserError, match=r"nightly\.json is damaged"):
        places.night()


@pytest.mark.processes
def test_a_file_that_ends_what_reads_it_is_refused_and_not_met_again_until_it_changes(
    places: Places, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A library that dies of one file, as compiled ones do.
    (tmp_path / "polars.py").write_text(
        "import os, sys, signal\n"
        "sys.path.remove(os.path.dirname(__file__)); del sys.modules['polars']\n"
        "import polars\n"
        "whole = polars.read_parquet_schema\n"
        "def read(path):\n"
        "    if 'worse' in str(path):\n"
        f"        open({str(tmp_path / 'deaths')!r}, 'a').write('x')\n"
        "        os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    return whole(path)\n"
        "polars.read_parquet_schema = read\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    inboxed = places.put(places.inbox / "train_1__worse.parquet", 4)
    own = places.put(places.folder / "train_1__worse_still.parquet", 5)
    with ReadingProcess() as places.reader:
        for night in range(2):
            found = places.night()
            assert set(found.refused) == {str(inboxed), str(own)}
            assert all("ended the process that read it (SIGSEGV" in text for text in found.refused.values())
            assert len(found.new) == (0 if night else 3)
            assert (tmp_path / "deaths").read_text() == "xx"
        os.utime(own, (LONG_AGO, LONG_AGO))
        places.night()
        assert (tmp_path / "deaths").read_text() == "xxx"


def test_a_file_of_which_nights_died_is_refused_by_the_third(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = places.put(places.inbox / "train_1__worse.parquet", 4)
    monkeypatch.setattr(places.reader, "ask", lambda request: killed(places, request))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            places.night()
        places.being_read.write_text(places.noted)  # of a process that was killed
    found = places.night()
    assert "ended nights" in found.refused[str(bad)]
    assert len(found.new) == 3
    assert list(places.night().refused) == [str(bad)]


def killed(places: Places, request: ReadingRequest) -> Answer:
    places.noted = places.being_read.read_text()
    if "worse" in request.path:
        raise KeyboardInterrupt
    return Answer(request.refusal())


def test_a_file_that_grows_while_it_is_read_waits_and_is_not_refused(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    grows = places.put(places.inbox / "train_1__more.csv", 4)

    def grow(request: ReadingRequest) -> Answer:
        if request.path != str(grows):
            return Answer(request.refusal())
        with grows.open("a") as file:
            file.write("more")
        return Answer("its last line is cut off")

    monkeypatch.setattr(places.reader, "ask", grow)
    found = places.night()
    assert (found.waiting, found.refused) == (["train_1__more.csv"], {})


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        os.chdir(path.parent)  # a path of more than 107 characters is none
        listening.bind(path.name)


def link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def link_to_nothing(path: Path) -> None:
    path.symlink_to("nothing.csv")


@pytest.mark.parametrize("make", [make_pipe, make_socket, link_to_device, link_to_itself, link_to_nothing])
@pytest.mark.parametrize("name", ["train_1__a.csv", "train_1/a.csv"])
def test_what_is_no_file_is_refused_and_holds_no_night_up(
    places: Places, make: Callable[[Path], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(places.inbox)
    (places.inbox / "train_1").mkdir()
    (places.inbox / "train_2").symlink_to(places.inbox)  # a loop of folders
    make(places.inbox / name)
    found = places.night()
    assert len(found.new) == 3
    assert str(places.inbox / name) in found.refused


def test_a_name_that_is_no_text_is_refused_in_inbox_and_folder(places: Places) -> None:
    odd = os.fsdecode(b"train_1__\xff.csv")
    for folder in (places.inbox, places.folder):
        shutil.copy2(places.put(folder / "train_1__b.csv", 9), folder / odd)
    found = places.night()
    names = [f"{folder}/train_1__\\xff.csv" for folder in (places.inbox, places.folder)]
    assert [found.refused[name] for name in names] == ["its name is no text in UTF-8: rename it"] * 2
    assert "train_1__b.parquet" in found.new
    assert places.ledger_path.read_text().encode("utf-8")


def test_a_file_of_holes_is_refused_before_it_is_hashed(places: Places) -> None:
    path = places.inbox / "train_1__a.log"
    with path.open("wb") as file:
        file.write(b"(1.0) can0 123#11\n")
        file.truncate(1 << 42)
    os.utime(path, (LONG_AGO, LONG_AGO))
    assert "of it were ever written; copy it again" in places.night().refused[str(path)]


def test_many_small_files_are_taken_in_and_the_folder_is_walked_as_often_as_for_one(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = places.put(places.inbox / "train_1__0.csv", 3)
    for number in range(1, 200):
        shutil.copy2(first, places.inbox / f"train_1__{number}.csv")
    walks: list[Path] = []

    def walk(folder: Path) -> Iterator[tuple[str, str, Path]]:
        walks.append(folder)
        return walk_recordings(folder)

    monkeypatch.setattr(new_recordings, "walk_recordings", walk)
    assert len(places.night().new) == 203
    assert len(walks) <= 3
