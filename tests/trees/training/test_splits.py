import contextlib
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdgat.base import UserError
from kdgat.trees.names import SPLITS
from kdgat.trees.sections import FileConfig
from kdgat.trees.training.splits import split_files


def split(files, contents=None, seed=0):
    found = split_files(files, contents or [f"content {place}" for place in range(len(files))], seed)
    assert set(found) == set(SPLITS)
    places = sorted(place for places in found.values() for place in places)
    assert places == list(range(len(files))), "each file is in one split"
    return found


def of_place(found):
    return {place: name for name, places in found.items() for place in places}


def make_files(labels, **given):
    return [FileConfig(name=f"file-{place}", label=label, **given) for place, label in enumerate(labels)]


FILES = st.lists(
    st.tuples(st.sampled_from([None, "a", "b"]), st.sampled_from([None, "g", "h", "i"]), st.integers(0, 12)),
    min_size=6,
    max_size=30,
)


@settings(max_examples=60)
@given(FILES, st.integers(0, 3))
def test_what_belongs_together_is_never_in_two_splits(drawn, seed) -> None:
    files = [FileConfig(name=str(place), label=one[0], group=one[1]) for place, one in enumerate(drawn)]
    contents = [str(one[2]) for one in drawn]
    with contextlib.suppress(UserError):  # of too few groups, which is another test's business
        check_apart(files, contents, of_place(split(files, contents, seed)))


def check_apart(files, contents, splits):
    for key in (contents, [file.group for file in files]):
        for one in range(len(files)):
            for other in range(one):
                if key[one] is not None and key[one] == key[other]:
                    assert splits[one] == splits[other]


def test_files_that_are_joined_through_others_stay_together() -> None:
    files = [
        FileConfig(name="a", group="one"),
        FileConfig(name="b", group="one"),
        FileConfig(name="c", group="two"),
        FileConfig(name="d", group="two"),
        *make_files([None] * 20),
    ]
    contents = ["x", "same", "same", "y", *(str(place) for place in range(20))]
    for seed in range(10):
        splits = of_place(split(files, contents, seed))
        assert len({splits[place] for place in range(4)}) == 1


def test_each_split_has_its_share_of_each_class() -> None:
    labels = ["a"] * 40 + ["b"] * 20 + ["c"] * 4
    for name, shares in (("validation", (6, 3, 1)), ("test", (6, 3, 1)), ("train", (28, 14, 2))):
        found = split(make_files(labels))[name]
        assert Counter(labels[place] for place in found) == dict(zip("abc", shares, strict=True))


def test_labelled_numbers_are_shared_apart_from_files_without_one() -> None:
    files = [FileConfig(name=str(place), target=1.0 if place < 10 else None) for place in range(200)]
    for seed in range(10):
        counts = {name: sum(place < 10 for place in places) for name, places in split(files, seed=seed).items()}
        assert counts == {"train": 6, "validation": 2, "test": 2}


def test_a_group_is_of_the_class_that_any_of_its_files_has() -> None:
    files = [
        FileConfig(name=f"{group}{number}", label="xy"[group % 2] if number else None, group=str(group))
        for group in range(6)
        for number in (0, 1)
    ]
    for seed in range(4):
        found = split(files, seed=seed)
        assert all({files[place].label for place in places} == {None, "x", "y"} for places in found.values())


def test_a_draw_follows_from_the_seed() -> None:
    files = make_files(["a", "b"] * 20)
    assert split(files, seed=3) == split(files, seed=3) != split(files, seed=4)


def test_stated_splits_are_kept() -> None:
    stated = ["test", "train", "validation", "train", "test"]
    files = [FileConfig(name=str(place), split=one) for place, one in enumerate(stated)]
    assert split(files) == {"train": [1, 3], "validation": [2], "test": [0, 4]}


def test_files_of_which_the_table_says_nothing_train_or_stay_with_their_group() -> None:
    stated = ["train", None, "test", None, "validation"]
    files = [FileConfig(name=str(place), split=one, label=one and "a") for place, one in enumerate(stated)]
    assert split(files, ["a", "b", "c", "c", "d"]) == {"train": [0, 1], "validation": [4], "test": [2, 3]}


def test_labels_of_which_some_alone_have_a_split_are_refused() -> None:
    files = [FileConfig(name="one", label="a", split="train"), FileConfig(name="two", target=1.0)]
    with pytest.raises(UserError, match="two has a label and no split, others have one: state a split for each"):
        split(files)


@pytest.mark.parametrize(("groups", "contents"), [(("g", "g", None), "abc"), ((None, None, None), "aac")])
def test_a_group_or_a_content_in_two_splits_is_refused(groups, contents) -> None:
    stated = ("train", "test", "validation")
    files = [
        FileConfig(name=f"file-{place}", split=one, group=group)
        for place, (one, group) in enumerate(zip(stated, groups, strict=True))
    ]
    with pytest.raises(UserError, match=r"file-1 is in test, and file-0, of the same group or content, in train"):
        split(files, list(contents))


@pytest.mark.parametrize(
    ("files", "contents", "words"),
    [
        (make_files(["a", "a"]), None, "validation, test: no file is left"),
        (make_files(["a"] * 9), ["same"] * 9, r"1 groups of different content\): give at least three"),
        (make_files([None] * 4, split="train"), None, "validation, test: no file is left"),
    ],
)
def test_a_split_without_a_file_is_refused(files, contents, words) -> None:
    with pytest.raises(UserError, match=words):
        split(files, contents)
