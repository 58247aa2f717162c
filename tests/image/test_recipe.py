"""Both images come from one source, and lie in the repository as it renders them."""

import re

import pytest

from kdgat.image.base import choose_base
from kdgat.image.checkout import find_checkout
from kdgat.image.errors import ImageError
from kdgat.image.recipe import DEFAULT_BASE, VARIANTS, Variant, define, find_variant

both = pytest.mark.parametrize("variant", VARIANTS.values(), ids=lambda variant: variant.name)


@both
def test_the_definition_in_the_repository_is_the_rendered_one(variant: Variant) -> None:
    assert find_checkout().definition_path(variant).read_text() == define(variant).render()


def test_the_images_differ_where_the_table_of_variants_says_so_and_nowhere_else() -> None:
    cpu, gpu = (define(variant).render().splitlines() for variant in VARIANTS.values())
    said = {word for variant in VARIANTS.values() for word in (variant.title, variant.name, *variant.imports)}
    said |= {name for variant in VARIANTS.values() for name in variant.caches}
    for line in set(cpu) ^ set(gpu):
        assert any(word in line for word in said), line


@both
def test_an_image_has_two_stages_and_takes_only_what_was_installed(variant: Variant) -> None:
    build, runtime = define(variant).stages
    assert (build.name, runtime.name) == ("build", "runtime")
    assert [(copy.source, copy.stage) for copy in runtime.files] == [("/opt/kdgat", "build")]
    assert "setup" not in build.sections  # it would run on the host
    assert "--require-hashes" in build.sections["post"]
    assert "--no-index" in build.sections["post"]


@both
def test_nothing_of_the_user_or_of_home_counts_inside(variant: Variant) -> None:
    environment = define(variant).stages[1].sections["environment"]
    assert "PYTHONNOUSERSITE=1 PYTHONSAFEPATH=1" in environment
    caches = re.findall(r'^export (\w+)="\$kdgat_caches/', environment, flags=re.MULTILINE)
    assert {"XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR"} <= set(caches)
    assert ("CUPY_CACHE_DIR" in caches) == (variant.name == "gpu")


@both
def test_the_default_base_cannot_change(variant: Variant) -> None:
    for stage in define(variant).stages:
        assert re.fullmatch(r"[a-z]+@sha256:[0-9a-f]{64}", stage.arguments["BASE"])
    assert choose_base(None).reference == DEFAULT_BASE


@both
def test_labels_say_version_revision_source_base_and_lock(variant: Variant) -> None:
    labels = define(variant).stages[1].labels
    for name in ("version", "revision", "source", "base.digest"):
        assert "{{" in labels[f"org.opencontainers.image.{name}"]
    assert "{{" in labels["kdgat.lock.sha256"]


def test_an_unknown_image_is_refused_with_those_there_are() -> None:
    with pytest.raises(ImageError, match="image 'tpu' is unknown: choose one of cpu, gpu"):
        find_variant("tpu")
