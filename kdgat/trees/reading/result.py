"""What every reader returns: a tree, and in words what had to be repaired before it was one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kdgat.base.text import list_some
from kdgat.trees.structure.tree import Tree

MAX_LISTED = 5
"""Lines that a note names; the others are counted."""


@dataclass(frozen=True, eq=False)
class ReadTree:
    """Hold a tree as it is used, and one note for each kind of repair, naming the first lines.

    Attributes:
        loops: of the network that the tree spans: edges that it had to leave out.
        others: more spanning trees of the same network, with the same root; none without loops.
    """

    tree: Tree
    notes: tuple[str, ...] = ()
    loops: int = 0
    others: tuple[Tree, ...] = ()

    @property
    def trees(self) -> tuple[Tree, ...]:
        """Return all spanning trees of the network."""
        return self.tree, *self.others


def name_lines(lines: Iterable[int]) -> str:
    """Name the first lines and count the others.

    >>> name_lines([3]), name_lines([9, 3]), name_lines(range(1, 9))
    ('line 3', 'lines 3, 9', 'lines 1, 2, 3, 4, 5 and 3 more')
    """
    ordered = sorted(int(line) for line in lines)
    return f"line{'s' if len(ordered) > 1 else ''} {list_some(ordered, MAX_LISTED)}"
