"""A site's GPUs against the torch of its nodes: refused before the queue, in one sentence that has both and the fix.

What cards say of themselves was recorded from nvidia-smi, what builds have from the wheels on PyPI.
"""

from pathlib import Path

import pytest

from kdgat.cluster import Resources, Site, SiteError
from kdgat.cluster.gpu_type import TorchBuild, check_gpus, check_precision, keep_card, seen_card
from kdgat.stage.gpus import capability_of, cards_of

CUDA_12 = TorchBuild(
    torch="2.10.0+cu128",
    cuda="12.8",
    architectures=("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    driver=535,
)
CUDA_13 = TorchBuild(
    torch="2.13.0+cu130",
    cuda="13.0",
    architectures=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    driver=580,
)
OLDER = TorchBuild(torch="2.7.1+cu126", cuda="12.6", architectures=("sm_50", "sm_80", "sm_90"), driver=525)
V100 = "Tesla V100-SXM2-32GB, 7.0, 535.183.01"
A100 = "NVIDIA A100-SXM4-80GB, 8.0, 550.90.07"
SITE = Site(name="osc-pitzer", scheduler="slurm", gpu_type="v100")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def refusal(build: TorchBuild, gpu_type: str) -> str:
    with pytest.raises(SiteError) as caught:
        list(check_gpus(SITE, [gpu_type], build, "image kdgat.sif"))
    return str(caught.value)


def said(build: TorchBuild, *gpu_types: str | None) -> list[str]:
    return list(check_gpus(SITE, gpu_types, build, "image kdgat.sif"))


def test_a_v100_is_refused_with_an_image_for_cuda_13() -> None:
    assert refusal(CUDA_13, "v100") == (
        "site osc-pitzer gives v100 (7.0); image kdgat.sif has code for 7.5 to 12.0: use the image for CUDA 12 (kdgat "
        "image build gpu), or another gpu_type"
    )


@pytest.mark.parametrize("gpu_type", ["v100", "t4", "a100", "a40", "l40s", "h100", "b200", "rtx5090"])
def test_the_image_for_cuda_12_runs_on_all_from_volta_on(gpu_type: str) -> None:
    assert said(CUDA_12, gpu_type) == []


def test_another_fix_is_named_where_a_newer_build_or_none_has_code() -> None:
    assert "image build gpu-cuda13" in refusal(OLDER, "b200")
    assert "no image has any for it; name another gpu_type" in refusal(CUDA_12, "p100")


def test_a_torch_without_cuda_is_refused_for_any_gpu() -> None:
    with pytest.raises(
        SiteError, match=r"\(torch 2\.13\.0\+cpu\) is built without CUDA: .* or ask for none \(--gpus 0\)"
    ):
        said(TorchBuild(torch="2.13.0+cpu"), None)


def test_what_is_not_known_is_said_and_refuses_nothing() -> None:
    (sentence,) = said(CUDA_13, "gold", "gold")
    assert "gpu_type gold" in sentence
    assert "not checked: kdgat doctor --site osc-pitzer --gpus 1" in sentence
    assert said(CUDA_13, None) == []
    assert said(TorchBuild(torch="2.13.0", hip="6.4"), "mi300") == []


def test_the_driver_that_a_job_met_is_compared_from_then_on() -> None:
    assert said(CUDA_13, "a100") == []
    keep_card(SITE, "a100", cards_of(A100)[0])
    text = refusal(CUDA_13, "a100")
    assert text.startswith("site osc-pitzer had driver 550.90.07 for a100 on 20")
    assert "CUDA 13.0 of image kdgat.sif needs 580 or newer: use the image for CUDA 12 (kdgat image build gpu)" in text
    assert "kdgat doctor --site osc-pitzer --gpus 1" in text
    assert said(CUDA_12, "a100") == []
    assert seen_card(SITE.model_copy(update={"name": "another"}), "a100") is None


def test_what_a_job_met_tells_more_than_a_name() -> None:
    keep_card(SITE, "gold", cards_of(V100)[0])
    assert "gives gold (7.0)" in refusal(CUDA_13, "gold")
    assert said(CUDA_12, "gold") == []


def test_notes_that_nobody_can_read_are_as_none(tmp_path: Path) -> None:
    keep_card(SITE, "v100", cards_of(V100)[0])
    (path,) = (tmp_path / "kdgat" / "sites").iterdir()
    path.write_text('{"v100": {"name": 1}}')
    assert seen_card(SITE, "v100") is None


@pytest.mark.parametrize("precision", ["bf16-mixed", "tf32"])
def test_a_precision_that_a_v100_has_no_units_for_is_refused(precision: str) -> None:
    with pytest.raises(SiteError) as caught:
        check_precision(SITE, "v100", precision)
    assert str(caught.value) == (
        f"site osc-pitzer gives v100 (7.0), and training.precision={precision} needs a GPU of capability 8.0 (A100) or "
        "newer: use 32-true or 16-mixed, or another gpu_type"
    )
    check_precision(SITE, "a100", precision)
    check_precision(SITE, "gpu-of-ours", precision)  # which the job tells
    keep_card(SITE, "gpu-of-ours", cards_of(V100)[0])
    with pytest.raises(SiteError, match=r"gives gpu-of-ours \(7\.0\)"):
        check_precision(SITE, "gpu-of-ours", precision)


def test_other_precisions_are_computed_by_any_card() -> None:
    for precision in ("32-true", "16-mixed"):
        check_precision(SITE, "v100", precision)


@pytest.mark.parametrize(
    ("gpu_type", "expected"),
    [
        ("V100-SXM2", (7, 0)),
        ("tesla_v100", (7, 0)),
        ("rtx6000", (7, 5)),
        ("rtx_6000_ada", (8, 9)),
        ("nvidia_a100_80gb_pcie", (8, 0)),
        ("a10", (8, 6)),
        ("rtx_pro_6000", (12, 0)),
        ("a1000", None),
        ("1g.10gb", None),
        ("mi300", None),
    ],
)
def test_a_name_tells_the_capability(gpu_type: str, expected: tuple[int, int] | None) -> None:
    assert capability_of(gpu_type) == expected
    Resources(walltime_s=1, memory_mib=1, gpus=1, gpu_type=gpu_type)  # may stand in a site file
