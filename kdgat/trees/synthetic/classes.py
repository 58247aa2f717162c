"""Classes of synthetic trees: by what each one's law differs from the reference."""

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final, Literal

from kdgat.base import UserError
from kdgat.base.text import suggest
from kdgat.trees.synthetic.generation import SyntheticTree, grow
from kdgat.trees.synthetic.law import GrowthLaw, Law
from kdgat.trees.synthetic.rivers import RiverLaw

TreeKind = Literal["neurons", "rivers"]

_NEURITE, _OTHER = 3, 0  # types of SWC

_NEURONS: Final[Mapping[str, Mapping[str, float]]] = MappingProxyType(
    {
        "reference": {},
        "angle": {"angle": 2.0},
        "asymmetry": {"length_asymmetry": 1.2, "angle_asymmetry": 1.3},
        "taper": {"taper": 0.95},
        "pruning": {"branching_depth": 0.92, "length_ratio": 0.92},
        "mirror": {"dihedral": -1.0},
    }
)
_RIVERS: Final[Mapping[str, Mapping[str, float]]] = MappingProxyType(
    {
        "reference": {},
        "tokunaga": {"tokunaga_a": 0.5, "tokunaga_c": 1.5},
        "bifurcation": {"tokunaga_a": 1.6},
        "elongation": {"length_ratio": 1.12},
    }
)

CLASSES: Final[Mapping[TreeKind, tuple[str, ...]]] = MappingProxyType(
    {"neurons": ("reference", "angle", "asymmetry", "taper", "pruning"), "rivers": tuple(_RIVERS)}
)
"""Classes of each kind. Neurons of the further class "mirror" are mirror images of the reference."""

NUM_NODES: Final[Mapping[TreeKind, tuple[int, int]]] = MappingProxyType({"neurons": (30, 500), "rivers": (20, 400)})
"""Fewest and most nodes of a tree; the up to 4 % that the laws grow smaller or larger are drawn again."""


def find_kind(kind: str) -> TreeKind:
    """Return the kind of this name; UserError names the known ones."""
    for known in CLASSES:
        if known == kind:
            return known
    raise UserError(f"kind {kind!r} of trees is unknown: choose among {', '.join(CLASSES)}")


def law_of(kind: TreeKind, class_name: str, num_nodes: tuple[int, int] | None = None) -> Law:
    """Return the law of a class.

    Args:
        kind: "neurons" or "rivers".
        class_name: one of `CLASSES[kind]`, or "mirror" for neurons.
        num_nodes: fewest and most nodes; trees branch for more levels, or orders, by the geometric mean of both. None:
            `NUM_NODES[kind]`.

    Raises:
        UserError: if there is no such kind or class, or the numbers cannot be used.
    """
    low, high = num_nodes or NUM_NODES[find_kind(kind)]
    if not 2 <= low <= high:
        raise UserError(f"num_nodes={num_nodes}: give the fewest nodes, at least 2, and the most")
    growth = 0.5 * math.log(low * high / math.prod(NUM_NODES[kind]))
    reference: GrowthLaw | RiverLaw
    if kind == "neurons":
        neuron = GrowthLaw()
        reference = replace(neuron, branching_depth=max(1.0, neuron.branching_depth + growth / math.log(2.0)))
    else:
        river = RiverLaw()
        reference = replace(river, order=max(1, river.order + round(growth / math.log(river.bifurcation_ratio))))
    classes = _NEURONS if kind == "neurons" else _RIVERS
    if class_name not in classes:
        hint = suggest(class_name, classes, f"choose among {', '.join(classes)}")
        raise UserError(f"class {class_name!r} of {kind} is unknown: {hint}")
    return replace(reference, **{key: getattr(reference, key) * factor for key, factor in classes[class_name].items()})


def generate_tree(
    class_name: str,
    seed: int,
    num_nodes: tuple[int, int] | None = None,
    *,
    kind: TreeKind = "neurons",
) -> SyntheticTree:
    """Grow the tree of a class that belongs to a seed.

    Args:
        class_name: one of `CLASSES[kind]`, or "mirror" for neurons.
        seed: at least 0.
        num_nodes: fewest and most nodes, as in `law_of`.
        kind: "neurons" or "rivers".

    Raises:
        UserError: naming what is unknown, or a size that the class hardly ever has.

    >>> generate_tree("reference", seed=0).tree.num_nodes == generate_tree("reference", seed=0).tree.num_nodes
    True
    """
    law = law_of(kind, class_name, num_nodes)
    label = CLASSES[kind].index(class_name) if class_name in CLASSES[kind] else len(CLASSES[kind])
    swc_kind = _NEURITE if kind == "neurons" else _OTHER
    return grow(law, class_name, seed, num_nodes or NUM_NODES[kind], swc_kind, label)
