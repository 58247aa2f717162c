"""The definitions differ where they say so, and agree with what the code builds and starts."""

import re

import pytest

from kdgat.container import ImageError
from kdgat.container.build import Base, build_arguments, choose_base, default_base
from kdgat.container.checkout import find_checkout
from kdgat.container.layout import CACHES, GPU_CACHES, PREFIX
from kdgat.container.variants import LOCK, LOCK_IN_IMAGE, PYTHON_MINOR, VARIANTS, WHEELS, Variant, find_variant

each = pytest.mark.parametrize("variant", VARIANTS.values(), ids=lambda variant: variant.name)


def text_of(variant: Variant) -> str:
    return find_checkout().definition_path(variant).read_text()


def arguments_of(text: str) -> dict[str, set[str]]:
    """Return every argument with the values that the stages give it."""
    found: dict[str, set[str]] = {}
    for section in re.findall(r"^%arguments\n((?:    .*\n)+)", text, flags=re.MULTILINE):
        for name, value in re.findall(r"^    (\w+)=(.*)$", section, flags=re.MULTILINE):
            found.setdefault(name, set()).add(value)
    return found


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "cpu"])
def test_the_images_differ_in_three_arguments_and_nowhere_else(name: str) -> None:
    cpu, gpu = (text_of(VARIANTS[one]).splitlines() for one in ("cpu", name))
    different = [(left, right) for left, right in zip(cpu, gpu, strict=True) if left != right]
    named = [left.strip().partition("=")[0] for left, _ in different if not left.startswith("#")]
    assert named == ["VARIANT", "TITLE", "NEED_DRIVER"]


@each
def test_a_build_gives_every_argument_but_those_in_which_the_images_differ(variant: Variant) -> None:
    declared = arguments_of(text_of(variant))
    given = build_arguments(find_checkout(), variant, Base("docker", "a", "b", "c"), "unknown")
    assert {*given, "VARIANT", "TITLE", "NEED_DRIVER"} == set(declared)  # Apptainer refuses one that no stage uses
    assert all(len(values) == 1 for values in declared.values())
    assert declared["VARIANT"] == {variant.name}


@each
def test_an_image_is_labelled_with_what_its_torch_says_of_gpus(variant: Variant) -> None:
    assert 'python -I -m kdgat.container.probe labels >>"$APPTAINER_LABELS"' in text_of(variant)


@each
def test_the_default_base_cannot_change(variant: Variant) -> None:
    reference = default_base(find_checkout().definition_path(variant))
    assert re.fullmatch(r"[a-z]+@sha256:[0-9a-f]{64}", reference)
    assert choose_base(reference).reference == reference


@each
def test_an_image_has_the_caches_that_jobs_move_and_the_places_that_the_code_knows(variant: Variant) -> None:
    text = text_of(variant)
    caches = dict(re.findall(r'^    export (\w+)="\$kdgat_caches/(\w+)"', text, flags=re.MULTILINE))
    assert caches == {**CACHES, **GPU_CACHES}
    assert f"%files\n    {WHEELS} /opt/build/{WHEELS}\n    {LOCK} /opt/build/{LOCK}\n" in text
    assert f"%files from build\n    {PREFIX} {PREFIX}\n" in text
    assert f"--lock {LOCK_IN_IMAGE} --python {PYTHON_MINOR} " in text
    assert "%setup" not in text  # it would run on the host


def test_an_unknown_image_is_refused_with_those_there_are() -> None:
    with pytest.raises(ImageError, match="image 'tpu' is unknown: choose one of cpu, gpu, gpu-cuda13"):
        find_variant("tpu")
