"""`kdgat new FILE` writes what `check` and `train` take; a file in the place of a family is an experiment."""

from pathlib import Path

import pytest

from kdgat.base import UserError
from kdgat.cli.main import with_source
from kdgat.cli.new import new
from kdgat.experiment.config import ExperimentConfig
from kdgat.experiment.plan import plan_experiment


def test_what_is_written_can_be_planned(tmp_path: Path) -> None:
    new(tmp_path / "net.py")
    plan = plan_experiment(ExperimentConfig.from_preset("quick", {"source": str(tmp_path / "net.py")}))
    assert [stage.stage for stage in plan] == ["prepare", "prepare", "small", "large", "evaluation"]


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("mine")
    with pytest.raises(UserError, match="is there already"):
        new(tmp_path / "net.py")
    assert (tmp_path / "net.py").read_text() == "mine"
    with pytest.raises(UserError, match=r"ends in \.py"):
        new(tmp_path / "net")


@pytest.mark.parametrize("command", ["train", "plan", "estimate", "sweep"])
def test_a_file_stands_for_its_family(command: str) -> None:
    assert with_source([command, "net.py", "--out", "x"]) == [command, "experiment", "--source", "net.py", "--out", "x"]
    assert with_source([command, "nets.a:experiment"]) == [command, "experiment", "--source", "nets.a:experiment"]
    assert with_source(["config", "show", "net.py"]) == ["config", "show", "experiment", "--source", "net.py"]
    assert with_source([command, "can", "--out", "x.py"]) == [command, "can", "--out", "x.py"]
