"""What changes names is done twice, because an answer was lost: the second time finds the work of the first."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kdgat.base import write_json_atomically
from kdgat.family.night import NightlyDirectory, NightlyRecord
from kdgat.registry import Registry
from kdgat.run import OutputDirectory
from kdgat.stage import Finished, RunDirectory
from tests.nfs.repeated import RepeatingServer, repeating_mount

pytestmark = pytest.mark.processes


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Path, RepeatingServer]]:
    with repeating_mount(tmp_path / "mount") as found:
        yield found


@pytest.fixture
def place(server: tuple[Path, RepeatingServer], folder: str) -> Path:
    return server[0] / folder


def test_a_rename_that_is_done_is_answered_by_an_error(place: Path, server: tuple[Path, RepeatingServer]) -> None:
    (place / "a").write_text("a")
    with pytest.raises(FileNotFoundError):
        (place / "a").replace(place / "b")
    assert (place / "b").read_text() == "a"
    with pytest.raises(FileExistsError):
        (place / "c").mkdir()
    assert server[1].repeated() == {"RENAME": 1, "MKDIR": 1}


def test_a_file_is_replaced_as_often_as_it_is_written(place: Path) -> None:
    for number in range(20):
        write_json_atomically(place / "a.json", number)
        assert (place / "a.json").read_text() == f"{number}\n"
    assert [entry.name for entry in place.iterdir()] == ["a.json"]


def test_an_outcome_is_written_and_forgotten(place: Path) -> None:
    directory = RunDirectory(place)
    with directory.lock():
        directory.write_outcome(Finished())
    assert directory.read_outcome() == Finished()
    assert not directory.owner_path.exists()


def test_a_registry_keeps_and_promotes_a_model(place: Path) -> None:
    registry = Registry(place / "registry")
    for number in range(3):
        entry = registry.add(
            {"stages/normal/weights": str(number).encode()}, family="can", dataset="cars", content=f"{number:064x}"
        )
        registry.promote(entry.id, reason="better", by="test")
        assert registry.in_service("can", "cars") == entry
        registry.verify(entry)


def test_the_run_of_a_night_is_made_and_removed(place: Path) -> None:
    directory = NightlyDirectory(place / "nights")
    path = directory.runs_path / "night-1"
    directory.write(path, NightlyRecord(created="2026", recordings="", config="", start=None, model="m", is_over=True))
    (OutputDirectory(path).path / "log").write_text("")
    directory.remove_run(path)
    assert directory.records() == {}
