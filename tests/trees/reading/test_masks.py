import numpy as np
import pytest
from skimage.io import imsave

from kdgat.trees.reading import ReadError
from kdgat.trees.reading.masks import read_mask
from kdgat.trees.structure.tree import contract


def vessels(scale=1):
    """A trunk of width 9 from the top, which forks into two branches of width 3, on 120 rows and 100 columns."""
    mask = np.zeros((120, 100), np.uint8)
    mask[5:60, 46:55] = scale
    for step in range(50):
        mask[60 + step, 49 + step // 2 : 52 + step // 2] = scale
        mask[60 + step, 49 - step // 2 : 52 - step // 2] = scale
    return mask


def saved(folder, mask, suffix=".png"):
    path = folder / f"vessels{suffix}"
    if suffix == ".npy":
        np.save(path, mask)
    else:
        imsave(path, mask, check_contrast=False)
    return path


@pytest.mark.parametrize(("suffix", "scale"), [(".png", 255), (".png", 1), (".tif", 255), (".npy", 1)])
def test_a_fork_is_read_as_a_root_two_branches_and_their_radii(tmp_path, suffix, scale):
    (result,) = read_mask(saved(tmp_path, vessels(scale), suffix))
    tree = result.tree
    assert (tree.name, result.notes) == ("vessels", ("2 spurs no longer than the vessel's radius cut",))
    assert tree.radius[0] == tree.radius.max() == pytest.approx(5, abs=1)
    assert 45 <= tree.position[0, 0] <= 55
    assert 5 <= tree.position[0, 1] < 65
    tips = tree.position[(tree.num_children == 0) & (tree.position[:, 1] > 100)]
    assert sorted(np.sign(tips[:, 0] - 50)) == [-1, 1]
    assert set(np.round(tree.length[1:], 3)) <= {1.0, 1.414}
    assert contract(tree).num_nodes == 4


def test_corners_make_no_spurs(tmp_path):
    stairs = np.zeros((40, 40), bool)
    for step in range(5, 35):
        stairs[step, step] = stairs[step, step - 1] = True
    (result,) = read_mask(saved(tmp_path, stairs, ".npy"))
    assert (result.tree.num_children == 0).sum() <= 2
    assert result.notes == ()


def test_the_centre_may_be_the_root(tmp_path):
    bar = np.zeros((21, 101), bool)
    bar[9:12, 5:96] = True
    (result,) = read_mask(saved(tmp_path, bar, ".npy"), root="centre")
    assert result.tree.position[0].tolist() == [50, 10, 0]
    assert result.tree.num_children[0] == 2


def test_a_loop_is_cut_far_from_the_root_and_noted(tmp_path):
    rows, columns = np.mgrid[:60, :60]
    ring = np.abs(np.hypot(rows - 30, columns - 30) - 20) < 2
    (result,) = read_mask(saved(tmp_path, ring, ".npy"))
    assert result.notes == ("1 loop cut where farthest from the root",)
    tips = result.tree.position[result.tree.num_children == 0]
    middle = np.array([30, 30, 0])
    assert all(np.dot(tip - middle, result.tree.position[0] - middle) < -300 for tip in tips)


def test_random_spanning_trees_cut_a_ring_in_different_places(tmp_path):
    rows, columns = np.mgrid[:60, :60]
    ring = np.abs(np.hypot(rows - 30, columns - 30) - 20) < 2
    (result,) = read_mask(saved(tmp_path, ring, ".npy"), generators=[np.random.default_rng(seed) for seed in range(5)])
    assert (result.loops, result.notes) == (1, ("1 loop: 5 random spanning trees",))
    assert len({tree.parent.tobytes() for tree in result.trees}) > 3
    for tree in result.trees:
        assert tree.num_nodes == result.tree.num_nodes
        assert np.array_equal(tree.position[0], result.tree.position[0])


def test_each_component_is_a_tree_and_specks_are_counted(tmp_path):
    mask = np.zeros((60, 60), bool)
    mask[5, 5:50] = mask[20, 5:30] = mask[40, 40:42] = True
    first, second = read_mask(saved(tmp_path, mask, ".npy"))
    assert [first.tree.name, second.tree.name] == ["vessels-1", "vessels-2"]
    assert [first.tree.num_nodes, second.tree.num_nodes] == [45, 25]
    assert (first.notes, second.notes) == (("1 specks below 8 pixels left out",), ())


@pytest.mark.parametrize("suffix", [".npy", ".tif"])
def test_a_mask_in_space_gives_a_tree_in_space(tmp_path, suffix):
    mask = np.zeros((30, 31, 32), np.uint8)
    mask[5:25, 14:17, 14:17] = mask[14:17, 14:17, 3:28] = 255
    (result,) = read_mask(saved(tmp_path, mask, suffix))
    spread = np.ptp(contract(result.tree).position, axis=0)  # columns, rows, planes
    assert spread[0] > 20 > spread[2] > 15
    assert spread[1] <= 2


@pytest.mark.parametrize(
    ("mask", "suffix", "reason"),
    [
        (np.zeros((9, 9)), ".npy", "one value everywhere"),
        (np.arange(81).reshape(9, 9), ".npy", "has 81 values from 0 to 80, expected two: threshold it first"),
        (np.eye(9)[4:6], ".npy", "no skeleton of 8 pixels"),
        (np.zeros((2, 2, 2, 2)), ".npy", "has 4 axes"),
        (np.array([["a"]]), ".npy", "expected numbers"),
        (np.dstack([vessels(9), vessels(9), vessels(7)]), ".png", "has colours"),
    ],
)
def test_what_is_no_mask_is_refused(tmp_path, mask, suffix, reason):
    with pytest.raises(ReadError, match=reason):
        read_mask(saved(tmp_path, mask, suffix))


@pytest.mark.parametrize("suffix", [".png", ".tif", ".npy"])
def test_a_file_that_is_no_image_is_refused_with_its_name(tmp_path, suffix):
    path = tmp_path / f"broken{suffix}"
    path.write_bytes(b"\x89PNG\r\n\x1a\nnot really")
    with pytest.raises(ReadError, match=f"broken{suffix}: is no image"):
        read_mask(path)
    with pytest.raises(ReadError, match="is no image"):
        read_mask(tmp_path / f"nowhere{suffix}")


def test_a_mask_with_grey_colours_and_opacity_is_read_as_one_channel(tmp_path):
    plain = read_mask(saved(tmp_path, vessels(255)))[0].tree
    grey = vessels(255)
    opaque = np.dstack([grey, grey, grey, np.full_like(grey, 200)])
    assert np.array_equal(read_mask(saved(tmp_path, opaque))[0].tree.position, plain.position)


@pytest.mark.parametrize(("suffix", "data"), [(".png", b"\0"), (".npy", b"\x93NUMPY\x01\x00v\x00{" + b" " * 120)])
def test_a_damaged_image_is_refused_whatever_its_reader_raises(tmp_path, suffix, data):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(data)
    with pytest.raises(ReadError, match="is no image that can be opened"):
        read_mask(path)


def test_a_tiff_whose_pages_lead_round_in_a_circle_is_refused(tmp_path):
    path = saved(tmp_path, vessels(255), ".tif")
    data = bytearray(path.read_bytes())
    first = int.from_bytes(data[4:8], "little")
    after = first + 2 + 12 * int.from_bytes(data[first : first + 2], "little")
    data[after : after + 4] = first.to_bytes(4, "little")  # where the next page is: this one again
    path.write_bytes(data)
    with pytest.raises(ReadError):
        read_mask(path)
