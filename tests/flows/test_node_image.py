import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from flows import node_image
from flows.execution import Execution
from flows.node_image import NodeImage, check_gpus_of_run
from kdgat.base import ConfigurationError
from kdgat.can.inputs import can_run
from kdgat.cluster import ResourceRequest, Resources, Site, SiteError
from kdgat.cluster.gpu_type import keep_card
from kdgat.container import ImageError
from kdgat.container.agreement import describe_here, image_notes, keep_notes
from kdgat.run import OutputDirectory
from kdgat.stage import gpus as gpus_of_stages
from kdgat.stage import package_version
from kdgat.stage.gpus import cards_of
from tests.can.small_runs import make_config

CUDA_13 = {"torch": "2.13.0+cu130", "cuda": "13.0", "architectures": ["sm_75", "sm_80", "sm_120"], "driver": 580}
ON_V100 = Resources(walltime_s=60, memory_mib=1, gpus=1, gpu_type="v100")


def make_image(path: Path, content: bytes, moment: int, **changes: Any) -> str:
    """Write a file that was asked before, and return its digest."""
    path.write_bytes(content)
    os.utime(path, (moment, moment))
    notes = image_notes(path)
    keep_notes(path, notes.model_copy(update={"contents": {"python": {**describe_here(), **changes}}}))
    return notes.sha256


def at_site(image: str) -> Site:
    return Site(name="here", scheduler="slurm", image=image)


def test_an_attempt_knows_path_digest_and_state_of_its_image(tmp_path: Path) -> None:
    digest = make_image(tmp_path / "kdgat.sif", b"an image", 1_700_000_000)
    assert NodeImage(at_site(str(tmp_path / "kdgat.sif"))).check() == {
        "KDGAT_IMAGE": str(tmp_path / "kdgat.sif"),
        "KDGAT_IMAGE_SHA256": digest,
        "KDGAT_IMAGE_STAMP": "8:1700000000",
    }


def test_without_an_image_there_is_nothing_to_check() -> None:
    assert NodeImage(Site(name="here", scheduler="slurm")).check() == {}
    assert NodeImage(Site(name="local")).check() == {}


def test_an_image_that_is_replaced_while_the_run_lasts_is_told_of(tmp_path: Path) -> None:
    said: list[str] = []
    first = make_image(tmp_path / "kdgat.sif", b"an image", 1)
    image = NodeImage(at_site(str(tmp_path / "kdgat.sif")))
    image.check(said.append)
    image.check(said.append)
    assert said == []
    second = make_image(tmp_path / "kdgat.sif", b"no image", 2)
    assert image.check(said.append)["KDGAT_IMAGE_SHA256"] == second
    (line,) = said
    assert first in line
    assert second in line


def test_an_image_that_is_replaced_by_one_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    make_image(tmp_path / "kdgat.sif", b"an image", 1)
    image = NodeImage(at_site(str(tmp_path / "kdgat.sif")))
    image.check()
    make_image(tmp_path / "kdgat.sif", b"no image", 2, dask="2025.1.0")
    with pytest.raises(ImageError, match=r"dask 2025\.1\.0 in the image"):
        image.check()


def test_an_image_that_cannot_be_checked_is_named_without_a_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OF_THE_NODE", raising=False)
    said: list[str] = []
    assert NodeImage(at_site("$OF_THE_NODE/a.sif")).check(said.append) == {"KDGAT_IMAGE": "$OF_THE_NODE/a.sif"}
    assert len(said) == 1


def test_a_flow_whose_gpus_its_image_has_no_code_for_ends_before_it_has_written_anything(tmp_path: Path) -> None:
    make_image(tmp_path / "kdgat.sif", b"an image", 1, torch=CUDA_13)
    output = OutputDirectory(tmp_path / "out")
    site = at_site(str(tmp_path / "kdgat.sif")).model_copy(update={"gpu_type": "v100"})
    config = make_config("quick", data={"dataset": "synthetic", "data_root": "data"})
    with pytest.raises(
        SiteError, match=r"^site here gives v100 \(7\.0\); image .*kdgat\.sif has code for 7\.5 to 12\.0: "
    ):
        Execution(can_run(config), output, site, ResourceRequest(gpus=1))
    assert not output.path.exists()
    output.path.mkdir()
    Execution(can_run(config), output, site, ResourceRequest(gpus=0))


def test_a_flow_whose_gpus_have_no_units_for_its_precision_ends_before_it_has_written_anything(tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path / "out")
    site = Site(name="here", scheduler="slurm", gpu_type="v100", python=str(tmp_path / "python"))
    data = {"dataset": "synthetic", "data_root": "data"}
    run = can_run(make_config("quick", ["training.precision=bf16-mixed"], data=data))
    with pytest.raises(SiteError, match=r"^site here gives v100 \(7\.0\), and training\.precision=bf16-mixed needs "):
        Execution(run, output, site, ResourceRequest(gpus=1))
    assert not output.path.exists()
    output.path.mkdir()
    Execution(run, output, site, ResourceRequest(gpus=0))


def test_a_run_on_the_processor_may_be_given_gpus_that_nothing_takes(tmp_path: Path) -> None:
    make_image(tmp_path / "kdgat.sif", b"an image", 1, torch=CUDA_13)
    site = at_site(str(tmp_path / "kdgat.sif")).model_copy(update={"gpu_type": "v100"})
    data = {"dataset": "synthetic", "data_root": "data"}
    config = make_config("quick", ["training.accelerator=cpu"], data=data)
    Execution(can_run(config), OutputDirectory(tmp_path), site, ResourceRequest(gpus=1))


@pytest.mark.parametrize(
    ("site", "gpus", "visible", "why"),
    [
        (Site(name="local"), 0, "", "none is seen here"),
        (Site(name="local"), 0, "0", None),
        (Site(name="here", scheduler="slurm"), 0, "", "no job that trains asks for one"),
        (Site(name="here", scheduler="slurm", python="/of/nodes/python"), 1, "", None),
    ],
)
def test_what_changes_nothing_without_a_gpu_is_said_once_before_anything_runs(
    site: Site, gpus: int, visible: str, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(gpus_of_stages, "package_version", lambda name: "2.13.0+cu130")
    words = ["training.capture=true", "training.memory_snapshot=true"]
    data = {"dataset": "synthetic", "data_root": "data"}
    said: list[str] = []
    check_gpus_of_run(can_run(make_config("quick", words, data=data)), site, ResourceRequest(gpus=gpus), said.append)
    about = [line for line in said if "changes nothing" in line]
    assert about == ([] if why is None else [f"{one} changes nothing without a GPU, and {why}" for one in words])
    said.clear()
    check_gpus_of_run(can_run(make_config("quick", data=data)), site, ResourceRequest(gpus=gpus), said.append)
    assert not any("changes nothing" in line for line in said)


@pytest.mark.processes
def test_a_gpu_that_this_machine_has_not_is_refused_before_anything_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    run = can_run(
        make_config("quick", ["training.accelerator=cuda"], data={"dataset": "synthetic", "data_root": "data"})
    )
    with pytest.raises(ConfigurationError, match=r"^training\.accelerator=cuda and torch .* set training"):
        Execution(run, OutputDirectory(tmp_path / "out"), Site(name="local"), ResourceRequest())
    assert not (tmp_path / "out").exists()


def test_without_an_image_the_torch_of_the_python_that_runs_stages_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(python: str) -> dict[str, object]:
        asked.append(python)
        return CUDA_13

    monkeypatch.setattr(node_image, "torch_of_python", answer)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")  # a login node
    monkeypatch.setenv("OF_SITE", "/apps")
    site = Site(name="here", scheduler="slurm", gpu_type="v100")
    for one in (site, site.model_copy(update={"python": "$OF_SITE/bin/python"})):
        with pytest.raises(SiteError, match=r"the torch of /.*python\S* has code for 7\.5 to 12\.0"):
            NodeImage(one).check_gpus([ON_V100])
    assert asked == [sys.executable, "/apps/bin/python"]
    NodeImage(site).check_gpus([ON_V100.model_copy(update={"gpus": 0})])
    NodeImage(Site(name="local")).check_gpus([ON_V100])
    assert len(asked) == 2, "where no job gets a GPU nothing is asked"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    said: list[str] = []
    NodeImage(site).check_gpus([ON_V100], said.append)
    assert (len(asked), len(said)) == (2, 1), "a machine that submits nothing shares no Python with nodes"


def test_a_driver_that_a_job_met_is_refused_before_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make_image(tmp_path / "kdgat.sif", b"an image", 1, torch=CUDA_13)
    site = at_site(str(tmp_path / "kdgat.sif"))
    asked = [ON_V100.model_copy(update={"gpu_type": "a100"})]
    NodeImage(site).check_gpus(asked)
    keep_card(site, "a100", cards_of("NVIDIA A100-SXM4-80GB, 8.0, 550.90.07")[0])
    with pytest.raises(SiteError, match=r"had driver 550\.90\.07 for a100 .* needs 580 or newer"):
        NodeImage(site).check_gpus(asked)


def test_a_python_that_only_nodes_have_is_not_compared_and_that_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    site = Site(name="here", scheduler="slurm", gpu_type="v100", python=str(tmp_path / "python"))
    NodeImage(site).check_gpus([ON_V100], said.append)
    (sentence,) = said
    assert sentence.startswith(f"site here: the torch of {tmp_path / 'python'} cannot be asked here, so ")


@pytest.mark.processes
def test_the_torch_of_a_python_is_asked_in_a_process_of_its_own() -> None:
    found = node_image.torch_of_python(sys.executable)
    assert found is not None
    assert found["torch"] == package_version("torch")


def test_a_flow_with_an_image_that_does_not_fit_ends_before_it_has_written_anything(tmp_path: Path) -> None:
    make_image(tmp_path / "kdgat.sif", b"an image", 1, cloudpickle="3.0.0")
    output = OutputDirectory(tmp_path / "out")
    run = can_run(make_config("quick", data={"dataset": "synthetic", "data_root": "data"}))
    with pytest.raises(ImageError, match=r"cloudpickle 3\.0\.0 in the image"):
        Execution(run, output, at_site(str(tmp_path / "kdgat.sif")), ResourceRequest())
    assert not output.path.exists()
