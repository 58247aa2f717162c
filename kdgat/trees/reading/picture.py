"""A page of trees, each seen where it is widest, as SVG, HTML (around the SVG) or PNG; no network, no script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError
from kdgat.trees.structure.tree import Tree

MAX_TREES = 24
COLUMNS, PANEL, MARGIN, CAPTION = 6, 220, 12, 34
"""Panels beside each other; pixels of a panel, of its margin and of the text below it."""
INK, PAPER = "#1b1f24", "#ffffff"
# Okabe and Ito's colours, by type of SWC: told apart with every common colour-vision deficiency.
KIND_COLOURS = {1: "#1b1f24", 2: "#D55E00", 3: "#0072B2", 4: "#CC79A7"}
OTHER_COLOUR = "#009E73"
KIND_NAMES = "black soma, orange axon, blue basal dendrite, pink apical dendrite, green other"
SUFFIXES = (".html", ".svg", ".png")


@dataclass(frozen=True, eq=False)
class Panel:
    """One tree on the page: pieces of lines [M, 2, 2] in pixels, their colours, the root, two lines of caption."""

    pieces: NDArray[np.float64]
    colours: list[str]
    root: tuple[float, float]
    caption: tuple[str, str]


def draw_trees(path: Path, trees: Sequence[Tree], captions: Sequence[str]) -> None:
    """Write a page with the first 24 trees as .html, .svg or .png, each with its name and a caption.

    Raises:
        UserError: if the suffix is another, or there is no tree.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"picture {path}: suffix {suffix!r} is none of {', '.join(SUFFIXES)}")
    if not trees:
        raise UserError(f"picture {path}: no tree to draw")
    panels = [
        _lay_out(tree, caption, number)
        for number, (tree, caption) in enumerate(zip(trees[:MAX_TREES], captions[:MAX_TREES], strict=True))
    ]
    more = f"; {MAX_TREES} of {len(trees)} trees" if len(trees) > MAX_TREES else ""
    legend = f"Each tree on its two principal axes; a ring marks the root; {KIND_NAMES}{more}."
    width = min(COLUMNS, len(panels)) * PANEL
    height = -(-len(panels) // COLUMNS) * (PANEL + CAPTION)
    path.parent.mkdir(parents=True, exist_ok=True)
    if suffix == ".png":
        _write_png(path, panels, width, height)
    else:
        svg = _as_svg(panels, width, height, legend)
        path.write_text(svg if suffix == ".svg" else _as_page(svg, legend), encoding="utf-8")


def project(position: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return places [N, 2] on the two axes along which they differ most, centred."""
    centred = position - position.mean(axis=0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    flat: NDArray[np.float64] = centred @ axes[:, :0:-1]
    return flat


def _lay_out(tree: Tree, caption: str, number: int) -> Panel:
    flat = project(tree.position)
    low, high = flat.min(axis=0), flat.max(axis=0)
    scale = (PANEL - 2 * MARGIN) / max(float((high - low).max()), np.finfo(float).tiny)
    row, column = divmod(number, COLUMNS)
    middle = np.array([column * PANEL + PANEL / 2, row * (PANEL + CAPTION) + PANEL / 2])
    place = (flat - (low + high) / 2) * scale + middle
    pieces = np.stack([place[tree.parent[1:]], place[1:]], axis=1)
    colours = [KIND_COLOURS.get(int(kind), OTHER_COLOUR) for kind in tree.kind[1:]]
    return Panel(pieces, colours, (float(place[0, 0]), float(place[0, 1])), (tree.name, caption))


def _as_svg(panels: Sequence[Panel], width: int, height: int, legend: str) -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        f' role="img" aria-label="{escape(legend)}" font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
    ]
    for number, panel in enumerate(panels):
        for colour in dict.fromkeys(panel.colours):
            pieces = panel.pieces[np.array(panel.colours) == colour].reshape(-1, 4)
            line = "".join(f"M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" for x0, y0, x1, y1 in pieces)
            parts.append(f'<path d="{line}" stroke="{colour}" fill="none" stroke-width="1"/>')
        x, y = panel.root
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{PAPER}" stroke="{INK}" stroke-width="1.5"/>')
        for offset, text in enumerate(panel.caption):
            left, top = _caption_place(number, offset)
            parts.append(f'<text x="{left}" y="{top + 10}" fill="{INK}">{escape(_shortened(text))}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _as_page(svg: str, legend: str) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Trees</title></head>\n'
        f'<body style="font-family: system-ui, sans-serif; color: {INK}">\n<p>{escape(legend)}</p>\n'
        f"{svg}</body></html>\n"
    )


def _write_png(path: Path, panels: Sequence[Panel], width: int, height: int) -> None:
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(image)
    for number, panel in enumerate(panels):
        for piece, colour in zip(panel.pieces.reshape(-1, 4).tolist(), panel.colours, strict=True):
            pen.line(piece, fill=colour)
        x, y = panel.root
        pen.ellipse((x - 4, y - 4, x + 4, y + 4), fill=PAPER, outline=INK)
        for offset, text in enumerate(panel.caption):
            pen.text(_caption_place(number, offset), _shortened(text), fill=INK)
    image.save(path)


def _caption_place(number: int, line: int) -> tuple[int, int]:
    row, column = divmod(number, COLUMNS)
    return column * PANEL + MARGIN, row * (PANEL + CAPTION) + PANEL + line * CAPTION // 2


def _shortened(text: str, width: int = 32) -> str:
    return text if len(text) <= width else f"...{text[3 - width :]}"
