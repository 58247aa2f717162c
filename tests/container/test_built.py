"""The cache of test images holds each state of lock, definition and base under its own name, and the newest two."""

import os
from pathlib import Path

from kdgat.container.checkout import Checkout
from kdgat.container.variants import VARIANTS
from tests.container.built import content_key, remove_older, source_key


def test_older_images_go_with_what_lies_beside_them(tmp_path: Path) -> None:
    for age, name in enumerate(("newest", "second", "third", "oldest")):
        for file in (f"kdgat-cpu-{name}.sif", f"kdgat-cpu-{name}.sif.log", f".kdgat-cpu-{name}.sif.kdgat.json"):
            (tmp_path / file).touch()
            os.utime(tmp_path / file, (1e9 - age, 1e9 - age))
    (tmp_path / "kdgat-cpu-gone.sif.log").touch()
    (tmp_path / "base-0.sif").touch()
    (tmp_path / ".lock").touch()
    remove_older(tmp_path, "kdgat-cpu-")
    kept = {path.name for path in tmp_path.iterdir()}
    assert {name for name in kept if name.endswith(".sif")} == {
        "kdgat-cpu-newest.sif", "kdgat-cpu-second.sif", "base-0.sif"
    }  # fmt: skip
    assert len(kept) == 2 * 3 + 2


def test_lock_definition_and_base_decide_what_is_built_anew_and_the_source_whether_it_is_the_checkouts(
    tmp_path: Path,
) -> None:
    (tmp_path / "containers").mkdir()
    (tmp_path / "kdgat").mkdir()
    checkout, variant = Checkout(tmp_path), VARIANTS["cpu"]
    contents, sources = [], []
    for path in (checkout.lock_path(variant), checkout.definition_path(variant), tmp_path / "kdgat" / "module.py"):
        checkout.lock_path(variant).touch()
        checkout.definition_path(variant).touch()
        contents.append(content_key(checkout, variant, tmp_path / "base.sif"))
        sources.append(source_key(checkout))
        path.write_text("changed")
    contents += [content_key(checkout, variant, tmp_path / name) for name in ("base.sif", "other.sif")]
    sources.append(source_key(checkout))
    assert len(set(contents)) == 4
    assert contents[2] == contents[3]  # the module counts nothing there
    assert len(set(sources)) == 2
    assert sources[2] != sources[3]
