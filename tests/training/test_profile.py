"""A profile of a few training steps: what it writes, and that it changes nothing of what is trained."""

import gzip
import json

import pytest

from kdgat.stage import RunDirectory
from kdgat.training import seed_everything
from kdgat.training.fit import fit
from kdgat.training.profile import PHASES
from tests.training.graph_training import CONFIG, SEED, GraphClassifier, make_sources

PROFILED = CONFIG.model_copy(update={"profile": True, "profile_steps": 3})


def train(path, config, name=""):
    seed_everything(SEED)
    module = GraphClassifier()
    fit(module, *make_sources(), config, RunDirectory(path), SEED, name=name)
    return {key: value.numpy().tobytes() for key, value in module.state_dict().items()}


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    path = tmp_path_factory.mktemp("profiled")
    return train(path, PROFILED, "student"), path / "profile"


@pytest.fixture
def folder(profiled):
    return profiled[1]


def test_it_changes_no_weight(profiled, tmp_path):
    assert profiled[0] == train(tmp_path, CONFIG, "student")
    assert not (tmp_path / "profile").exists()


def test_phases_and_operators_of_as_many_steps_as_were_asked_for_are_written(folder):
    found = json.loads((folder / "student.json").read_text())
    assert (found["fit"], found["steps"], set(found["phases"])) == ("student", 3, set(PHASES))
    assert all(seconds > 0 for seconds in found["phases"].values())
    assert sum(found["phases"].values()) <= found["seconds"]
    names = [one["name"] for one in found["operators"]]
    assert any(name.startswith("aten::") for name in names)
    assert not set(names) & set(PHASES)
    times = [one["seconds"] for one in found["operators"]]
    assert times == sorted(times, reverse=True)


def test_the_trace_holds_each_phase_of_each_step(folder):
    events = json.loads(gzip.decompress((folder / "student.pt.trace.json.gz").read_bytes()))["traceEvents"]
    phases = [event["name"] for event in events if event.get("cat") == "user_annotation"]
    assert {name: phases.count(name) for name in PHASES} == dict.fromkeys(PHASES, 3)


def test_a_fit_with_fewer_steps_is_profiled_to_its_end(tmp_path):
    train(tmp_path, PROFILED.model_copy(update={"profile_steps": 10_000}))
    found = json.loads((tmp_path / "profile" / "training.json").read_text())
    assert 0 < found["steps"] < 10_000


def test_a_profile_that_cannot_be_written_is_a_warning_and_changes_no_weight(tmp_path, caplog):
    for name in ("full", "free"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "profile").write_text("in the way")
    assert train(tmp_path / "full", PROFILED) == train(tmp_path / "free", CONFIG)
    assert "profile cannot be written" in caplog.text


def test_the_time_in_which_steps_wait_for_their_data_is_always_noted(tmp_path):
    directory = RunDirectory(tmp_path)
    seed_everything(SEED)
    fit(GraphClassifier(), *make_sources(), CONFIG, directory, SEED)
    (one,) = directory.work.fits.values()
    assert 0 < directory.work.loading_s < one.seconds
