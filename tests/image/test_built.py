"""The cache of test images holds each state of the code under its own name, and the newest two."""

import os
from pathlib import Path

from kdgat.image.checkout import Checkout
from kdgat.image.variants import VARIANTS
from tests.image.built import content_key, remove_older


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


def test_any_change_of_a_source_changes_the_name(tmp_path: Path) -> None:
    (tmp_path / "containers").mkdir()
    (tmp_path / "kdgat").mkdir()
    checkout, variant = Checkout(tmp_path), VARIANTS["cpu"]
    checkout.lock_path(variant).write_text("six==1\n")
    names = {content_key(checkout, variant, tmp_path / "base.sif")}
    (tmp_path / "kdgat" / "module.py").write_text("")
    names.add(content_key(checkout, variant, tmp_path / "base.sif"))
    (tmp_path / "kdgat" / "module.py").write_text("1")
    names.add(content_key(checkout, variant, tmp_path / "base.sif"))
    names.add(content_key(checkout, variant, tmp_path / "other.sif"))
    assert len(names) == 4
