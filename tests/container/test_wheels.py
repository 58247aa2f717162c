"""What lies in the folder of downloads is compared with the lock each time; real pip, wheels made here."""

import errno
import fcntl
import os
import threading
import zipfile
from pathlib import Path

import pytest

from kdgat.base import sha256_of_file
from kdgat.container import ImageError
from kdgat.container.checkout import Checkout
from kdgat.container.layout import cache_folder
from kdgat.container.variants import VARIANTS
from kdgat.container.wheels import PackageSources, fetch_wheels

pytestmark = pytest.mark.processes

CPU = VARIANTS["cpu"]


def make_wheel(folder: Path, name: str, version: str = "1.0") -> Path:
    path, information = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")
    return path


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two wheels, the only place where pip looks."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "published"
    folder.mkdir()
    for name in ("first_one", "second"):
        make_wheel(folder, name)
    return folder


@pytest.fixture
def checkout(published: Path, tmp_path: Path) -> Checkout:
    (tmp_path / "containers").mkdir()
    checkout = Checkout(tmp_path)
    checkout.lock_path(CPU).write_text("".join(
        f"{name}==1.0 \\\n    --hash=sha256:{sha256_of_file(published / wheel)}\n"
        for name, wheel in (("first-one", "first_one-1.0-py3-none-any.whl"), ("second", "second-1.0-py3-none-any.whl"))
    ))  # fmt: skip
    return checkout


def fetch(checkout: Checkout, published: Path, told: list[str]) -> set[str]:
    sources = PackageSources({"no-index": "true", "find-links": str(published)})
    folder = fetch_wheels(checkout, CPU, sources, checkout.root / "log", told.append)
    return {f"{path.name} {sha256_of_file(path)}" for path in folder.glob("*.whl")}


def test_wheels_are_fetched_once_and_again_where_they_are_not_what_the_lock_says(
    checkout: Checkout, published: Path
) -> None:
    told: list[str] = []
    expected = {f"{path.name} {sha256_of_file(path)}" for path in published.iterdir()}
    assert fetch(checkout, published, told) == expected
    assert fetch(checkout, published, told) == expected
    assert told[0].startswith("wheels: downloading 2 into ")
    assert told[-1].startswith("wheels: from ")
    told.clear()
    (folder,) = cache_folder("wheels").iterdir()
    (folder / "second-1.0-py3-none-any.whl").write_bytes(b"half of it")
    (folder / "first_one-1.0-py3-none-any.whl").unlink()
    make_wheel(folder, "stranger")
    assert fetch(checkout, published, told) == expected
    assert told[0].startswith("wheels: downloading 2 into ")


def test_a_wheel_with_another_hash_than_the_locks_is_refused(checkout: Checkout, published: Path) -> None:
    (published / "second-1.0-py3-none-any.whl").write_bytes(make_wheel(published, "other").read_bytes())
    with pytest.raises(ImageError, match=r"pip download failed: .*(?i:hash)"):
        fetch(checkout, published, [])


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_where_there_are_no_locks_a_build_goes_on_and_says_so(
    checkout: Checkout, published: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(file: object, kind: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    told: list[str] = []
    fetch(checkout, published, told)
    assert any("has no file locks" in line for line in told)


def test_a_build_that_waits_for_another_says_so(checkout: Checkout, published: Path) -> None:
    told: list[str] = []
    fetch(checkout, published, told)
    (folder,) = cache_folder("wheels").iterdir()
    waits = threading.Event()

    def tell(line: str) -> None:
        if "waiting for another build" in line:
            waits.set()

    sources = PackageSources({"no-index": "true", "find-links": str(published)})
    arguments = (checkout, CPU, sources, checkout.root / "log", tell)
    with (folder / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        thread = threading.Thread(target=fetch_wheels, args=arguments, daemon=True)
        thread.start()
        assert waits.wait(30)
        assert thread.is_alive()
    thread.join(30)
    assert not thread.is_alive()
