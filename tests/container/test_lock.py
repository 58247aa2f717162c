"""The locks are complete, resolvable and what the sources ask for; the resolver itself is asked."""

import shutil
from pathlib import Path

import pytest

from kdgat.container import ImageError
from kdgat.container.checkout import Checkout, find_checkout
from kdgat.container.contents import read_hashes, read_pins
from kdgat.container.lock import (
    check_lock,
    compare_locks,
    explain_resolver,
    lines_of_overrides,
    list_constraints,
    list_requirements,
    requirement_name,
)
from kdgat.container.variants import VARIANTS, Variant
from kdgat.container.wheels import PackageSources, read_pip_sources

each = pytest.mark.parametrize("variant", VARIANTS.values(), ids=lambda variant: variant.name)
ONE = "a==1 \\\n    --hash=sha256:" + "0" * 64 + "\nb==2 \\\n    --hash=sha256:" + "1" * 64 + "\n"


@each
@pytest.mark.image
def test_the_resolver_confirms_the_lock(variant: Variant) -> None:
    assert check_lock(find_checkout(), variant, read_pip_sources()) > 100


@each
def test_every_package_of_a_lock_has_hashes_and_no_place_is_named(variant: Variant) -> None:
    text = find_checkout().lock_path(variant).read_text()
    assert set(read_hashes(text)) == set(read_pins(text))
    assert all(read_hashes(text).values())
    assert not any(word in text for word in ("://", "--index-url", "--find-links", "file:", "@ "))


def test_both_sides_of_a_connection_have_the_same_versions() -> None:
    checkout = find_checkout()
    tested = read_pins(checkout.constraints_path.read_text())
    for variant in VARIANTS.values():
        pins = read_pins(checkout.lock_path(variant).read_text())
        for name in ("dask", "distributed", "cloudpickle", "prefect", "lightning", "torch-geometric"):
            assert pins[name] == tested[name], (variant.name, name)
    assert read_pins(checkout.lock_path(VARIANTS["cpu"]).read_text())["torch"] == f"{tested['torch']}+cpu"
    assert read_pins(checkout.lock_path(VARIANTS["gpu-cuda13"]).read_text())["torch"] == tested["torch"]


@pytest.mark.parametrize(("name", "major"), [("gpu", 12), ("gpu-cuda13", 13)])
def test_an_image_for_gpus_has_torch_and_rapids_for_one_major_version_of_cuda(name: str, major: int) -> None:
    pins = read_pins(find_checkout().lock_path(VARIANTS[name]).read_text())
    assert {f"{one}-cu{major}" for one in ("cudf", "cuml", "pylibcugraph", "cugraph-pyg", "nvidia-nccl")} <= set(pins)
    assert not [one for one in pins if one.endswith(f"-cu{25 - major}")]
    assert pins["cuda-toolkit"].startswith(f"{major}."), "torch says by it which CUDA it is built for"


def test_an_override_is_taken_from_the_lock_with_its_hashes_where_only_these_are_allowed() -> None:
    locked = find_checkout().lock_path(VARIANTS["gpu"]).read_text()
    (line,) = lines_of_overrides(VARIANTS["gpu"], locked)
    assert line.startswith("nvidia-nvjitlink-cu12==12.9.")
    assert set(line.split()[1:]) == {f"--hash={value}" for value in read_hashes(locked)["nvidia-nvjitlink-cu12"]}
    assert lines_of_overrides(VARIANTS["gpu"], ONE) == lines_of_overrides(VARIANTS["cpu"], locked) == []


def test_a_node_gets_no_report_and_nothing_that_submits_jobs() -> None:
    for variant in VARIANTS.values():
        pins = read_pins(find_checkout().lock_path(variant).read_text())
        assert not {"plotly", "dask-jobqueue", "spython", "pytest", "mypy", "uv"} & set(pins)


def test_a_requirement_of_the_variant_takes_the_place_of_the_projects() -> None:
    project = find_checkout().project
    requirements = list_requirements(project, VARIANTS["cpu"])
    assert [text for text in requirements if requirement_name(text) == "torch"] == ["torch==2.13.0+cpu"]
    assert len({requirement_name(text) for text in requirements}) == len(requirements)


def test_constraints_of_a_variant_leave_out_what_it_decides_itself() -> None:
    text = "# said\nnumba==0.68\nnumpy==2.4\n"
    assert list_constraints(text, VARIANTS["cpu"]) == ["numba==0.68", "numpy==2.4"]
    assert list_constraints(text, VARIANTS["gpu"]) == ["numpy==2.4"]


def test_differences_are_named() -> None:
    assert compare_locks(ONE, ONE) == []
    assert compare_locks(ONE, ONE.replace("a==1", "a==2")) == ["a is 1 there, 2 here"]
    assert compare_locks(ONE, ONE.replace("a==1", "c==1")) == ["a 1 is not needed", "c 1 is not in it"]
    assert compare_locks(ONE, ONE.replace("0" * 64, "2" * 64)) == ["a 1 has other files now than when it was locked"]


@pytest.fixture
def copied(tmp_path: Path) -> Checkout:
    """A checkout of which only what locks are made from is there."""
    found = find_checkout()
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(found.root / name, tmp_path)
    shutil.copytree(found.root / "containers", tmp_path / "containers")
    return Checkout(tmp_path)


@pytest.mark.image
def test_a_lock_that_lacks_a_package_is_refused_with_its_name(copied: Checkout) -> None:
    path = copied.lock_path(VARIANTS["cpu"])
    text = path.read_text()
    start, end = text.index("\nlocket=="), text.index("\nmako==")
    path.write_text(text[:start] + text[end:])
    with pytest.raises(ImageError, match=r"kdgat-cpu.lock cannot be installed as it is: .*locket"):
        check_lock(copied, VARIANTS["cpu"], read_pip_sources())


@pytest.mark.image
def test_a_lock_older_than_the_project_is_refused_with_what_differs(copied: Checkout) -> None:
    project = copied.root / "pyproject.toml"
    project.write_text(project.read_text().replace('"PyYAML>=6.0",', '"PyYAML>=6.0", "tabulate==0.9.0",'))
    with pytest.raises(ImageError, match=r"tabulate 0.9.0 is not in it.*kdgat image lock cpu"):
        check_lock(copied, VARIANTS["cpu"], read_pip_sources())


@pytest.mark.image
def test_versions_that_exclude_each_other_are_refused_in_the_resolvers_words(copied: Checkout) -> None:
    constraints = copied.constraints_path
    constraints.write_text(constraints.read_text().replace("distributed==2026.8.0", "distributed==2026.7.1"))
    with pytest.raises(ImageError, match=r"no set of packages fits: .*distributed"):
        check_lock(copied, VARIANTS["gpu"], read_pip_sources())


@pytest.mark.image
def test_an_index_without_torchs_builds_for_processors_leads_to_the_one_that_has_them(copied: Checkout) -> None:
    settings = {key: value for key, value in read_pip_sources().settings.items() if "index-url" in key or key == "cert"}
    with pytest.raises(ImageError, match=r"PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu"):
        check_lock(copied, VARIANTS["cpu"], PackageSources({**settings, "extra-index-url": ""}))
    assert "PIP_EXTRA_INDEX_URL" not in explain_resolver("no numpy")


@pytest.mark.image
def test_without_an_index_only_what_lies_in_folders_is_found(copied: Checkout, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    sources = PackageSources({**read_pip_sources().settings, "no-index": "1", "find-links": str(tmp_path / "empty")})
    with pytest.raises(ImageError, match=r"kdgat\.lock cannot be installed as it is"):
        check_lock(copied, VARIANTS["gpu"], sources)


@pytest.mark.image
def test_a_missing_lock_is_refused_with_the_command_that_makes_it(copied: Checkout) -> None:
    copied.lock_path(VARIANTS["gpu"]).unlink()
    with pytest.raises(ImageError, match=r"kdgat.lock is missing: kdgat image lock gpu"):
        check_lock(copied, VARIANTS["gpu"], read_pip_sources())
