"""Names and attributes of other nodes' files are old ones for a while, and a file in use stays when it is removed."""

import errno
import json
import os
from pathlib import Path

import pytest

from kdgat.base import write_json_atomically
from kdgat.base.files import ask_anew, put_in_place
from kdgat.family.night import NightlyDirectory, NightlyRecord
from kdgat.registry import Registry
from kdgat.registry.registry import UNFINISHED
from kdgat.run import OutputDirectory
from kdgat.stage import Finished, RunDirectory
from kdgat.stage.faults import is_environment_fault
from kdgat.stage.owner import own, read_owner
from tests.nfs.clients import Client
from tests.support.waiting import wait_until

MODEL = {"family": "can", "dataset": "cars"}


@pytest.mark.parametrize("reader", [0, 2])
def test_a_name_is_the_new_file_once_the_server_is_asked_anew_whoever_has_the_old_one_open(
    places: list[Path], reader: int
) -> None:
    write_json_atomically(places[0] / "a.json", 1)
    assert (places[1] / "a.json").stat()  # which it may answer for a minute from now on
    with (places[reader] / "a.json").open():
        write_json_atomically(places[0] / "a.json", [1, 2, 3])
        ask_anew(places[1])
        assert json.loads((places[1] / "a.json").read_text()) == [1, 2, 3]


def test_a_removed_file_that_another_node_has_open_is_stale(places: list[Path]) -> None:
    (places[0] / "a").write_bytes(bytes(10))
    with (places[1] / "a").open("rb", buffering=0) as file:
        (places[0] / "a").unlink()
        with pytest.raises(OSError, match="Stale") as stale:
            wait_until(lambda: file.seek(0) or os.fstat(file.fileno()) is None, "the error", timeout_s=90)
    assert stale.value.errno == errno.ESTALE
    assert is_environment_fault(stale.value)


def test_an_outcome_is_found_at_once_where_there_was_none_a_moment_ago(places: list[Path]) -> None:
    writer, reader = RunDirectory(places[0]), RunDirectory(places[1])
    assert reader.read_outcome() is None
    with writer.lock():
        writer.write_outcome(Finished(metrics={"f1": 1.0}))
    assert reader.read_outcome() == Finished(metrics={"f1": 1.0})


def token_at(place: Path) -> object:
    return (read_owner(place / "owner.json") or {}).get("token")


def test_an_owner_is_read_by_others_within_a_minute_and_is_never_half_a_one(places: list[Path]) -> None:
    tokens: set[object] = {None}
    for number in range(50):
        with own(places[number % 2] / "lock", places[number % 2] / "owner.json") as owner:
            tokens.add(owner.token)
            assert token_at(places[2]) in tokens  # an older one, at times
            owner.check()
            assert owner.successor() == ""
    with own(places[0] / "lock", places[0] / "owner.json") as owner:
        wait_until(lambda: token_at(places[2]) == owner.token, "the owner", timeout_s=90)


def test_nodes_write_one_registry_in_turn(places: list[Path]) -> None:
    registries = [Registry(place) for place in places]
    for number in range(9):
        entry = registries[number % 3].add({"weights": str(number).encode()}, content=f"{number:064x}", **MODEL)
        registries[(number + 1) % 3].promote(entry.id, reason="better", by="test")
        assert registries[(number + 2) % 3].in_service(**MODEL) == entry
    assert len(registries[0].read().models) == 9


def test_the_model_in_service_is_known_at_once_where_a_node_reads_the_index_of_before(places: list[Path]) -> None:
    writer, asking, reading = (Registry(place) for place in places)
    assert asking.in_service(**MODEL) is None
    for number in range(2):
        entry = writer.add({"weights": str(number).encode()}, content=f"{number:064x}", **MODEL)
        assert asking.entry(entry.id) == entry
        with reading.index_path.open():
            writer.promote(entry.id, reason="better", by="test")
            assert asking.in_service(**MODEL) == entry


def test_a_file_put_in_place_of_one_that_another_node_knows_is_in_its_place(places: list[Path]) -> None:
    for number in range(5):
        for place in places:
            temporary = place / ".new"
            temporary.write_text(f"{number} {place}")
            put_in_place(temporary, place / "a")
            assert (place / "a").read_text() == f"{number} {place}"
            for other in places:
                ask_anew(other)
                assert (other / "a").read_text() == f"{number} {place}"


def over(directory: NightlyDirectory, name: str) -> Path:
    path = directory.runs_path / name
    record = NightlyRecord(created="2026-01-01", recordings=name, config="", start=None, model="m", is_over=True)
    directory.write(path, record)
    (path / "stages" / "prepare").mkdir(parents=True)
    (path / "stages" / "prepare" / "train.h5").write_bytes(b"graphs")
    return path


def test_the_run_of_a_night_of_which_this_node_reads_a_file_is_removed_when_that_is_closed(places: list[Path]) -> None:
    directory = NightlyDirectory(places[0] / "nights")
    path = over(directory, "night-1")
    with (path / "stages" / "prepare" / "train.h5").open("rb") as file:
        with pytest.raises(OSError, match="stages cannot be removed"):
            directory.remove_run(path)
        assert file.read() == b"graphs"
        assert list(directory.records()) == [path]  # the next night tries again
    directory.remove_run(path)
    assert not path.exists()


def test_the_run_of_a_night_is_removed_while_another_node_reads_a_file_of_it(places: list[Path]) -> None:
    path = over(NightlyDirectory(places[0] / "nights"), "night-1")
    seen = places[1] / path.relative_to(places[0])
    with (seen / "stages" / "prepare" / "train.h5").open("rb"):
        NightlyDirectory(places[0] / "nights").remove_run(path)
    assert not path.exists()


def test_a_registry_is_written_while_this_node_reads_what_a_killed_writer_left(places: list[Path]) -> None:
    registry = Registry(places[0])
    registry.add({"weights": b"1"}, content="1" * 64, **MODEL)
    left = registry.models_path / f"{UNFINISHED}left"
    left.mkdir()
    (left / "weights").write_bytes(b"2")
    with (left / "weights").open("rb"):
        entry = registry.add({"weights": b"3"}, content="3" * 64, **MODEL)
    assert Registry(places[1]).entry(entry.id) == entry


def test_an_output_directory_is_locked_in_turn_by_all_nodes(nodes: list[Client], places: list[Path]) -> None:
    for place in places * 2:
        with OutputDirectory(place).lock():
            pass
