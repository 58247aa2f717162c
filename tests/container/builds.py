"""Builds of definitions on the tiny image."""

import shutil
from pathlib import Path

from kdgat.container.build import Builder, build_in_folder, work_folder

HEAD = "Bootstrap: localimage\nFrom: base.sif\n"


def build(tiny: Path, text: str, out: Path, work: Path | None = None, **arguments: str) -> list[str]:
    """Build a definition on the tiny image and return what was told."""
    told: list[str] = []
    builder = Builder.here()
    with work_folder(work, builder) as folder:
        context = folder / "context"
        shutil.copy(tiny, context / "base.sif")
        (context / "image.def").write_text(text)
        build_in_folder(context, out, arguments, builder, out.with_name("log"), told.append)
    return told
