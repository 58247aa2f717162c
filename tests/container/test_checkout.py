"""What an image says of its source holds no secret and no path of this machine."""

import subprocess
import tomllib
from pathlib import Path

import pytest

from kdgat.container import ImageError
from kdgat.container.checkout import WHEEL_SOURCES, Checkout, find_checkout, public_url


def git(folder: Path, *words: str) -> str:
    name = ["-c", "user.name=t", "-c", "user.email=t@t"]
    return subprocess.run(["git", "-C", folder, *name, *words], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("https://user:password@host.org/a/b.git", "https://host.org/a/b.git"),
        ("https://token@host.org:8443/a?key=1#x", "https://host.org:8443/a"),
        ("git@host.org:a/b.git", "ssh://host.org/a/b.git"),
        ("ssh://git@host.org/a", "ssh://host.org/a"),
        ("/home/somebody/repository", "unknown"),
        ("file:///home/somebody/repository", "unknown"),
        ("../elsewhere", "unknown"),
    ],
)
def test_an_address_is_published_without_user_and_password(url: str, public: str) -> None:
    assert public_url(url) == public


def test_a_changed_tree_is_not_called_by_its_revision_alone(tmp_path: Path) -> None:
    assert Checkout(tmp_path).revision() == "unknown"
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "one")
    revision = git(tmp_path, "rev-parse", "HEAD").strip()
    assert Checkout(tmp_path).revision() == revision
    (tmp_path / "file").write_text("2")
    assert Checkout(tmp_path).revision() == f"{revision}-dirty"


def test_a_module_that_git_does_not_know_makes_the_source_another(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("*.pyc\n")
    git(tmp_path, "add", ".gitignore")
    git(tmp_path, "commit", "-q", "-m", "one")
    (tmp_path / "notes").write_text("no part of the wheel")
    (tmp_path / "kdgat").mkdir()
    (tmp_path / "kdgat" / "left.pyc").write_text("ignored")
    assert not Checkout(tmp_path).revision().endswith("-dirty")
    (tmp_path / "kdgat" / "fresh.py").write_text("")
    assert Checkout(tmp_path).revision().endswith("-dirty")


def test_a_folder_without_the_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ImageError, match=r"is no checkout of kdgat .pyproject.toml, constraints.txt, containers missing"
    ):
        find_checkout(tmp_path)
    assert find_checkout().version


def test_what_the_image_builds_a_wheel_of_has_every_file_that_the_wheel_names() -> None:
    content = tomllib.loads((find_checkout().root / "pyproject.toml").read_text())
    named = [content["project"]["readme"], *content["project"]["license-files"]]
    named += [name for names in content["tool"]["setuptools"]["data-files"].values() for name in names]
    assert [name for name in named if not any(Path(name).is_relative_to(source) for source in WHEEL_SOURCES)] == []
