"""Where models score windows follows what a run trains on."""

import os
from pathlib import Path

import pytest
import torch

from kdgat.can.kinds import KINDS, PREPARE
from kdgat.can.models.scoring import stage_device, use_accelerator
from kdgat.can.plan import plan_can
from kdgat.can.stages import run
from kdgat.run.kinds import StageKind
from kdgat.stage import Finished, Outcome, RunDirectory, StageSpec
from tests.can.small_runs import make_config


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch say that it sees a device which it has kernels for."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_90"])


@pytest.mark.usefixtures("with_gpu")
@pytest.mark.parametrize(("accelerator", "expected"), [("auto", "cuda"), ("cuda", "cuda"), ("cpu", "cpu")])
def test_cpu_means_cpu_for_every_stage_that_computes_with_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accelerator: str, expected: str
) -> None:
    found: dict[str, str] = {}

    def look(kind: StageKind, spec: StageSpec, directory: RunDirectory) -> Outcome:
        found[spec.stage] = stage_device().type
        return Finished()

    monkeypatch.setattr(StageKind, "run", look)
    config = make_config("quick", [f"training.accelerator={accelerator}"], data={"dataset": "a", "data_root": "data"})
    for planned in (one for one in plan_can(config) if one.stage != PREPARE):
        run(
            StageSpec(
                family="can",
                stage=planned.stage,
                seed=planned.seed,
                config=planned.config,
                execution=planned.execution,
            ),
            RunDirectory(tmp_path),
        )
    assert found == dict.fromkeys(found, expected)
    assert set(found) == {kind.name for kind in KINDS} - {PREPARE, "score_recordings", "comparison"}
    use_accelerator("auto")


def test_what_is_deterministic_is_so_before_the_first_kernel_and_only_for_this_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[bool, bool, str | None]] = []

    def look(kind: StageKind, spec: StageSpec, directory: RunDirectory) -> Outcome:
        modes = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        found.append((*modes, os.environ.get("CUBLAS_WORKSPACE_CONFIG")))
        return Finished()

    monkeypatch.setattr(StageKind, "run", look)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    for deterministic in (None, True):
        config = {"training": {"accelerator": "cpu", "deterministic": deterministic}}
        run(StageSpec(family="can", stage="curriculum", seed=0, config=config), RunDirectory(tmp_path))
    assert found == [(False, False, None), (True, False, ":4096:8")]
    assert not torch.are_deterministic_algorithms_enabled()
    use_accelerator("auto")
