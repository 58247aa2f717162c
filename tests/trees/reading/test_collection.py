import errno
import os
from pathlib import Path

import numpy as np
import pytest

from kdgat.base import UserError
from kdgat.stage import FailureKind
from kdgat.stage.runner import failure_kind
from kdgat.trees.reading import ReadError
from kdgat.trees.reading.collection import Refusal, check_refusals, holds_trees, read_folder, read_sources
from kdgat.trees.reading.settings import ReadSettings

FORK = "1 1 0 0 0 1 -1\n2 3 1 0 0 1 1\n3 3 2 1 0 1 2\n4 3 2 -1 0 1 2\n"
LINE = '{"type": "LineString", "coordinates": [[8, 47], [8, 46]]}'


@pytest.fixture
def root(tmp_path):
    for name in ("a", "b", "inner/c"):
        path = tmp_path / "trees" / f"{name}.swc"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FORK)
    return tmp_path / "trees"


def labelled(root, text, encoding="utf-8"):
    path = root / "labels.csv"
    path.write_bytes(text.encode(encoding))
    return read_folder(root)


def test_files_are_found_in_order_and_read_when_they_are_asked_for(root):
    (root / "rivers.json").write_text(LINE)
    (root / "settings.json").write_text('{"a": 1}')
    (root / ".hidden.swc").write_text(FORK)
    mask = np.zeros((20, 20), bool)
    mask[5, 2:18] = mask[15, 2:18] = True
    np.save(root / "a.npy", mask)
    (root / "broken.swc").write_text("1 2 3\n")
    collection = read_folder(root)
    assert [source.name for source in collection.sources] == ["a.npy", "a.swc", "b", "broken", "inner/c", "rivers"]
    found, refusals = read_sources(collection.sources)
    names = [read.tree.name for _, trees in found for read in trees]
    assert names == ["a.npy-1", "a.npy-2", "a.swc", "b", "inner/c", "rivers"]
    assert [(refusal.path.name, refusal.reason[:6]) for refusal in refusals] == [("broken.swc", "line 1")]
    assert (collection.classes, collection.targets, collection.notes) == ((), (), ())


def test_one_file_is_a_folder_of_one(root):
    (source,) = read_folder(root / "a.swc").sources
    assert source.read()[0].tree.num_nodes == 4


@pytest.mark.parametrize("name", ["inner/c.swc", "inner/c", "c.swc", "c"])
def test_a_row_may_name_its_file_in_four_ways(root, name):
    collection = labelled(root, f"file,label\n{name},star\na,comb\n")
    assert [source.label for source in collection.sources] == ["comb", None, "star"]
    assert collection.classes == ("comb", "star")
    assert collection.notes == (f"{root / 'labels.csv'}: no row for b.swc: unlabelled, for pretraining alone",)


def test_a_table_may_hold_numbers_splits_and_groups(root):
    text = "\ufefffile,target_age,target_size,split,group\na,1.5,2,train,mouse\nb,3,4,train,mouse\nc,5,6,test,\n"
    collection = labelled(root, text)
    assert collection.targets == ("target_age", "target_size")
    assert [source.targets for source in collection.sources] == [(1.5, 2), (3, 4), (5, 6)]
    assert [(source.split, source.group) for source in collection.sources] == [
        ("train", "mouse"), ("train", "mouse"), ("test", None)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty, expected a heading"),
        ("file,label\n", "a heading and no row"),
        ("file;label\na;x\n", "save it with commas"),
        ("name,label\na,x\n", "unknown key 'name'"),
        ("file,lable\na,x\n", "did you mean 'label'"),
        ("label\nx\n", "no column 'file'"),
        ("file\na\n", "has neither"),
        ("file,label,target\na,x,1\n", "has label and target"),
        ("file,label,label\na,x,x\n", "column 'label' stands twice"),
        ("file,label\na\n", "labels.csv:2: 1 cells under 2 columns"),
        ("file,label\na,\n", "labels.csv:2: label '' is empty"),
        ("file,target\na,nan\n", "labels.csv:2: target 'nan' is no finite number"),
        ("file,target\na,much\n", "labels.csv:2: target 'much' is no finite number"),
        ("file,label\na,x\naa.swc,x\n", "labels.csv:3: file 'aa.swc' is no file of trees.*did you mean 'a.swc'"),
        ("file,label\na,x\nb,x\na.swc,y\n", "labels.csv:4: file 'a.swc' stands on line 2 already"),
        ("file,label,split\na,x,dev\n", "labels.csv:2: split 'dev' is none of train, validation, test"),
        ("file,label,split,group\na,x,train,m\nb,x,test,m\n", "labels.csv:3: group 'm' has split test here and train"),
    ],
)
def test_a_wrong_table_is_refused_with_row_column_and_value(root, text, reason):
    with pytest.raises(UserError, match=reason):
        labelled(root, text)


def test_a_table_in_another_encoding_is_refused_with_its_line(root):
    with pytest.raises(UserError, match=r"labels\.csv:3: byte 0xe4 is no UTF-8"):
        labelled(root, "file,label\na,x\nb,ä\n", encoding="latin-1")
    with pytest.raises(UserError, match="cannot be opened"):
        read_folder(root, root / "other.csv")


def test_a_name_of_two_files_is_refused(root):
    (root / "inner" / "a.swc").write_text(FORK)
    with pytest.raises(UserError, match=r"labels\.csv:2: file 'a\.swc' is the name of"):
        labelled(root, "file,label\na.swc,x\n")


def test_a_folder_without_trees_is_refused(tmp_path):
    with pytest.raises(UserError, match="no file of trees"):
        read_folder(tmp_path)
    with pytest.raises(UserError, match="no such file"):
        read_folder(tmp_path / "nowhere")


def test_a_few_unusable_files_are_left_out_and_many_are_listed(tmp_path):
    refusals = [Refusal(tmp_path / "a.swc", "line 3: text")]
    check_refusals(refusals, 20)
    check_refusals([], 0)
    with pytest.raises(UserError, match=r"(?s)1 of 19 files.*data.reading.max_bad_fraction=0.05.*a.swc: line 3: text"):
        check_refusals(refusals, 19)
    with pytest.raises(UserError, match="1 of 1"):
        check_refusals(refusals, 1, ReadSettings(max_bad_fraction=1.0))


def test_what_is_of_trees_is_known_by_its_files(root, tmp_path):
    assert holds_trees(root)
    assert holds_trees(root / "a.swc")
    other = tmp_path / "other"
    other.mkdir()
    (other / "plot.png").touch()
    assert holds_trees(other)
    (other / "drive.parquet").touch()
    assert not holds_trees(other)
    assert not holds_trees(other / "drive.parquet")


def test_a_source_of_an_unknown_kind_is_refused(root):
    (source,) = read_folder(root / "a.swc").sources
    with pytest.raises(ReadError, match="no known suffix"):
        type(source)("x", root / "x.doc").read()


@pytest.mark.parametrize(("number", "is_left_out"), [(errno.EIO, False), (errno.ESTALE, False), (errno.ENOENT, True)])
def test_a_file_that_cannot_be_read_now_is_not_left_out(root, monkeypatch, number, is_left_out):
    read = Path.read_bytes

    def refuse(path):
        if path.name == "b.swc":
            raise OSError(number, os.strerror(number), str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    if is_left_out:
        assert [refusal.path.name for refusal in read_sources(read_folder(root).sources)[1]] == ["b.swc"]
    else:
        with pytest.raises(ReadError, match=os.strerror(number)) as caught:
            read_sources(read_folder(root).sources)
        assert failure_kind(caught.value) is FailureKind.ENVIRONMENT
