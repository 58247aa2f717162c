import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kdgat.container import ImageError, agreement
from kdgat.container.agreement import image_digest, image_notes, keep_notes


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "images" / "kdgat.sif"
    path.parent.mkdir()
    path.write_bytes(b"an image")
    return path


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_the_digest_is_that_of_the_content_however_the_file_is_named(image: Path) -> None:
    link = image.with_name("current.sif")
    link.symlink_to(image.name)
    assert image_digest(image) == image_digest(str(link)) == sha256(b"an image")


def test_the_content_is_read_once(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = image_notes(image)
    monkeypatch.setattr(agreement, "sha256_of_file", lambda path: pytest.fail("read again"))
    assert image_notes(image) == first


def test_another_content_of_the_same_size_is_noticed(image: Path) -> None:
    before = image_notes(image)
    keep_notes(image, before.model_copy(update={"contents": {"python": {"kdgat": "1"}}}))
    image.write_bytes(b"no image")
    os.utime(image, ns=(before.mtime_ns + 1, before.mtime_ns + 1))
    after = image_notes(image)
    assert after.sha256 == sha256(b"no image")
    assert after.contents == {}


def test_a_file_put_in_its_place_with_the_same_time_is_noticed(image: Path) -> None:
    before = image_notes(image)
    other = image.with_name("new.sif")
    other.write_bytes(b"no image")
    os.utime(other, ns=(before.mtime_ns, before.mtime_ns))
    other.replace(image)
    assert image_digest(image) == sha256(b"no image")


def test_where_the_folder_is_read_only_the_users_cache_keeps_it(
    image: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = agreement.write_bytes_atomically

    def refuse(path: Path, content: bytes) -> None:
        if path.parent == image.parent:  # root may write anywhere
            raise PermissionError(13, "read-only", str(path))
        write(path, content)

    monkeypatch.setattr(agreement, "write_bytes_atomically", refuse)
    image_digest(image)
    assert [path.name for path in image.parent.iterdir()] == [image.name]
    assert len(list((cache / "kdgat" / "images").iterdir())) == 1
    monkeypatch.setattr(agreement, "sha256_of_file", lambda path: pytest.fail("read again"))
    assert image_digest(image) == sha256(b"an image")


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff", b'{"sha256": 1}', b"[]"])
def test_damaged_notes_are_made_anew(image: Path, damage: bytes) -> None:
    image_digest(image)
    (notes,) = [path for path in image.parent.iterdir() if path != image]
    notes.write_bytes(damage)
    assert image_digest(image) == sha256(b"an image")
    assert notes.read_bytes() != damage


def test_an_image_that_changes_while_it_is_read_has_no_digest(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def grow(path: Path) -> str:
        path.write_bytes(b"an image, longer")
        return sha256(b"an image")

    monkeypatch.setattr(agreement, "sha256_of_file", grow)
    with pytest.raises(ImageError, match="changed while it was read"):
        image_digest(image)


def test_many_may_ask_at_once(image: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: image_digest(image), range(32))) == {sha256(b"an image")}


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"nosuch\.sif is not there: build it"):
        image_digest(tmp_path / "nosuch.sif")
    with pytest.raises(ImageError, match="is a folder"):
        image_digest(tmp_path)
