from pathlib import Path
from typing import Any

import pytest

from kdgat.run import OutputDirectory
from kdgat.trees import stages
from kdgat.trees.stages import run_finetune
from tests.trees.small_runs import run_up_to, small_config

SHORT = ("training.max_epochs=1", "order.warmup_epochs=0")


def test_a_head_is_not_begun_again_for_fits_that_have_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = run_up_to(small_config(*SHORT), tmp_path, "finetune-seed0")["finetune-seed0"]
    weights = {path: path.read_bytes() for path in directory.path.glob("weights/*/weights.safetensors")}
    assert len(weights) == 2
    starts: list[Any] = []
    monkeypatch.setattr(stages, "start_head", lambda *given: starts.append(given))
    run_finetune(directory.read_spec(), directory)
    assert not starts
    assert {path: path.read_bytes() for path in weights} == weights


def test_an_encoder_of_paths_in_every_direction_does_a_whole_run(tmp_path: Path) -> None:
    config = small_config(*SHORT, "encoder.kind=sgmp", "label_fractions=[1.0]", "data.classes=[reference, angle]")
    run_up_to(config, tmp_path, "evaluation-seed0")
    assert OutputDirectory(tmp_path).read_index().record("evaluation-seed0").state.value == "finished"
