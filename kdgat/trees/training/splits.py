"""Which files train, validate and test: groups stay together, classes are shared evenly, and nobody is in two."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kdgat.base import UserError
from kdgat.trees.names import SPLITS, TEST, TRAIN, VALIDATION
from kdgat.trees.sections import FileConfig

SHARES = {VALIDATION: 0.15, TEST: 0.15}  # of the groups of each class; the rest trains


def split_files(files: Sequence[FileConfig], contents: Sequence[str], seed: int) -> dict[str, list[int]]:
    """Return the places of the files of each split.

    What the table of labels says of splits is kept; files of which it says nothing, which have no label either, train,
    unless their group is in another split. Without such a column whole groups are drawn, by the seed, from those of
    each class. Files of equal content are one group, whatever they are called.

    Args:
        files: as the table of labels has them.
        contents: hash of each file.
        seed: of the draw.

    Raises:
        UserError: if a split would be empty, a group is in two splits, or a label has no split beside others.
    """
    groups = _groups(files, contents)
    stated = [file.split for file in files]
    if any(stated):
        of_group: dict[int, tuple[str, str]] = {}
        for file, group in zip(files, groups, strict=True):
            if file.split is None:
                if file.label is not None or file.target is not None:
                    raise UserError(
                        f"{file.name} has a label and no split, others have one: state a split for each, or for none"
                    )
                continue
            split, name = of_group.setdefault(group, (file.split, file.name))
            if split != file.split:
                raise UserError(
                    f"{file.name} is in {file.split}, and {name}, of the same group or content, in {split}: "
                    "a test on what was trained on says nothing"
                )
        splits = [of_group.get(group, (TRAIN, ""))[0] for group in groups]
        found = {split: [place for place, one in enumerate(splits) if one == split] for split in SPLITS}
    else:
        found = _drawn(files, groups, seed)
    empty = [split for split in SPLITS if not found[split]]
    if empty:
        raise UserError(
            f"{', '.join(empty)}: no file is left for this split ({len(set(groups))} groups of different content): "
            "give at least three of a class, better thirty, or state a split for each file"
        )
    return found


def _groups(files: Sequence[FileConfig], contents: Sequence[str]) -> list[int]:
    """Number the groups: files that share a group's name or their content, directly or through others."""
    root = list(range(len(files)))

    def find(place: int) -> int:
        while root[place] != place:
            root[place] = root[root[place]]
            place = root[place]
        return place

    first: dict[str, int] = {}
    for place, (file, content) in enumerate(zip(files, contents, strict=True)):
        for key in (f"content {content}", f"group {file.group}" if file.group else ""):
            if key:
                root[find(place)] = find(first.setdefault(key, place))
    return [find(place) for place in range(len(files))]


def _drawn(files: Sequence[FileConfig], groups: Sequence[int], seed: int) -> dict[str, list[int]]:
    members: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        members.setdefault(group, []).append(place)
    classes: dict[tuple[str, bool], list[int]] = {}
    for group, places in members.items():
        label = next((label for place in places if (label := files[place].label)), "")
        # Few files with a number among many without one are shared out, too.
        has_target = any(files[place].target is not None for place in places)
        classes.setdefault((label, has_target), []).append(group)
    generator = np.random.default_rng([seed, 2])
    found: dict[str, list[int]] = {split: [] for split in SPLITS}
    for kind in sorted(classes):
        order = [int(group) for group in generator.permutation(sorted(classes[kind]))]
        # Where classes are many and small, shares are rounded up for the test first: it is what is believed.
        num_test = max(round(SHARES[TEST] * len(order)), int(len(order) >= 3))
        num_validation = max(round(SHARES[VALIDATION] * len(order)), int(len(order) >= 3))
        chosen = {TEST: order[:num_test], VALIDATION: order[num_test : num_test + num_validation]}
        chosen[TRAIN] = order[num_test + num_validation :]
        for split, some in chosen.items():
            found[split] += [place for group in some for place in members[group]]
    return {split: sorted(places) for split, places in found.items()}
