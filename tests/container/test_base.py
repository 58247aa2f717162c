"""A base is named so that it cannot become another one."""

from pathlib import Path

import pytest

from kdgat.container import ImageError
from kdgat.container.build import choose_base

DIGEST = f"sha256:{'0123456789abcdef' * 4}"


@pytest.mark.parametrize(
    ("text", "reference", "name"),
    [
        (f"python@{DIGEST}", f"python@{DIGEST}", "python"),
        (f"docker://python:3.11-slim@{DIGEST}", f"python@{DIGEST}", "python"),
        (f"registry:5000/a/b:tag@{DIGEST}", f"registry:5000/a/b@{DIGEST}", "registry:5000/a/b"),
    ],
)
def test_a_reference_with_a_digest_is_taken_without_its_tag(text: str, reference: str, name: str) -> None:
    base = choose_base(text)
    assert (base.agent, base.reference, base.name, base.digest) == ("docker", reference, name, DIGEST)


@pytest.mark.parametrize("text", ["python:3.11", "docker://python", "registry:5000/a/b:tag", "python@sha256:12"])
def test_a_reference_without_a_digest_is_refused_with_the_fix(text: str) -> None:
    with pytest.raises(ImageError, match=r"has no digest.*write .*@sha256:.*skopeo inspect"):
        choose_base(text)


def test_other_agents_are_refused() -> None:
    with pytest.raises(ImageError, match=r"only docker:// and .sif files"):
        choose_base("library://alpine")


def test_a_file_is_known_by_its_content_and_not_by_its_place(tmp_path: Path) -> None:
    image = tmp_path / "secret-place" / "my.sif"
    image.parent.mkdir()
    image.write_bytes(b"\0" * 32 + b"SIF_MAGIC\0")
    base = choose_base(str(image))
    assert (base.agent, base.name, base.file) == ("localimage", "my.sif", image)
    assert base.digest.startswith("sha256:")
    assert "secret-place" not in base.reference


def test_a_missing_file_and_one_that_is_no_image_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"nowhere\.sif is not there"):
        choose_base(str(tmp_path / "nowhere.sif"))
    other = tmp_path / "other.sif"
    other.write_text("text")
    with pytest.raises(ImageError, match="is no SIF image"):
        choose_base(str(other))
