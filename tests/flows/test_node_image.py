import os
from pathlib import Path

import pytest

from flows.execution import Execution
from flows.node_image import NodeImage
from kdgat.can.inputs import can_run
from kdgat.cluster import ResourceRequest, Site
from kdgat.container import ImageError
from kdgat.container.agreement import describe_here, image_notes, keep_notes
from kdgat.run import OutputDirectory
from tests.can.small_runs import make_config


def make_image(path: Path, content: bytes, moment: int, **changes: str) -> str:
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


def test_a_flow_with_an_image_that_does_not_fit_ends_before_it_has_written_anything(tmp_path: Path) -> None:
    make_image(tmp_path / "kdgat.sif", b"an image", 1, cloudpickle="3.0.0")
    output = OutputDirectory(tmp_path / "out")
    run = can_run(make_config("quick", data={"dataset": "synthetic", "data_root": "data"}))
    with pytest.raises(ImageError, match=r"cloudpickle 3\.0\.0 in the image"):
        Execution(run, output, at_site(str(tmp_path / "kdgat.sif")), ResourceRequest())
    assert not output.path.exists()
