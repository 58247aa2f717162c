"""What is bound is tried by reading every file in a tree that holds nothing but the binds, as a container would."""

import os
from pathlib import Path

import pytest

from kdgat.base import UserError
from kdgat.container.binds import MOST_BINDS, Bind, stage_binds
from kdgat.stage import RunDirectory, StageInput, StageSpec


def make_stage(tmp_path: Path, *inputs: Path, reads: tuple[Path, ...] = ()) -> tuple[RunDirectory, StageSpec]:
    directory = RunDirectory(tmp_path / "out" / "stages" / "normal-1")
    named = {f"input{number}": StageInput.of_file(path) for number, path in enumerate(inputs)}
    spec = StageSpec(family="can", stage="normal", seed=0, inputs=named, reads=tuple(str(path) for path in reads))
    directory.create(spec.movable(directory.path, tmp_path / "out"))
    return directory, directory.read_spec()


def write(path: Path, text: str = "content") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def find_inside(binds: list[Bind], path: Path) -> Path | None:
    """Follow a path as a process in the container would, and return the file of the machine that it finds."""
    for _ in range(50):
        roots = [bind for bind in binds if path.is_relative_to(bind.target)]
        if not roots:
            return None
        root = max(roots, key=lambda bind: len(bind.target.parts))
        place = root.target
        for part in path.relative_to(root.target).parts:
            place = place / part
            outside = root.source / place.relative_to(root.target)
            if outside.is_symlink():
                rest = path.relative_to(place)
                path = Path(os.path.normpath(place.parent / outside.readlink())) / rest
                break
        else:
            return Path(os.path.realpath(root.source / path.relative_to(root.target)))
    return None


def link_to(path: Path, target: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    return path


def test_only_the_run_directory_can_be_written(tmp_path: Path) -> None:
    directory, spec = make_stage(
        tmp_path, write(tmp_path / "out" / "stages" / "prepare-1" / "train.h5"), write(tmp_path / "data" / "a.csv")
    )
    binds = stage_binds(directory, spec, [write(tmp_path / "out" / "slurm" / "key").parent])
    assert {bind.target: bind.is_writable for bind in binds} == {
        tmp_path / "data": False,
        tmp_path / "out" / "slurm": False,
        tmp_path / "out" / "stages" / "prepare-1": False,
        directory.path: True,
    }
    assert all(bind.source == bind.target for bind in binds)


def test_a_folder_below_another_one_needs_no_bind_of_its_own(tmp_path: Path) -> None:
    inputs = [write(tmp_path / "data" / name) for name in ("a.csv", "train_1/b.csv", "train_1/deep/c.csv")]
    directory, spec = make_stage(tmp_path, *inputs)
    assert [bind.target for bind in stage_binds(directory, spec) if not bind.is_writable] == [tmp_path / "data"]


def test_the_run_directory_can_be_written_though_the_run_is_read(tmp_path: Path) -> None:
    directory, spec = make_stage(tmp_path, reads=(tmp_path / "out",))
    found = [(bind.target, bind.is_writable) for bind in stage_binds(directory, spec)]
    assert found == [(tmp_path / "out", False), (directory.path, True)]


@pytest.mark.parametrize("is_relative", [False, True])
def test_data_behind_symbolic_links_is_found_under_the_same_names(tmp_path: Path, is_relative: bool) -> None:
    def link(path: Path, target: Path) -> Path:
        return link_to(path, Path(os.path.relpath(target, path.parent.resolve())) if is_relative else target)

    archive, data = tmp_path / "archive", tmp_path / "data"
    recording = write(archive / "deep" / "0123abcd", "one")
    twice = link(tmp_path / "blobs" / "b.csv", link(archive / "also" / "b.csv", recording))
    inputs = [
        link(data / "a.csv", recording),
        link(data / "b.csv", twice),
        link(data / "train_2", write(archive / "set_2" / "c.csv", "three").parent) / "c.csv",
        link(tmp_path / "project", write(tmp_path / "gpfs" / "d.csv", "four").parent) / "d.csv",
        write(data / "e.csv", "five"),
    ]
    directory, spec = make_stage(tmp_path, *inputs)
    binds = stage_binds(directory, spec)
    for path in inputs:
        assert find_inside(binds, path) == Path(os.path.realpath(path)), path
    assert find_inside(binds, archive / "set_2") is not None
    assert find_inside(binds, write(tmp_path / "secret")) is None
    assert find_inside(binds, write(archive / "secret")) is None


def test_links_in_a_folder_that_is_read_as_a_whole_are_followed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    inner = write(tmp_path / "elsewhere" / "train_1" / "a.csv").parent
    (inner / "b.csv").symlink_to(write(tmp_path / "third" / "b.csv"))
    write(data / "plain.csv")
    (data / "train_1").symlink_to(inner)
    (data / "nowhere").symlink_to(tmp_path / "missing")
    (inner / "around").symlink_to(data)
    directory, spec = make_stage(tmp_path, reads=(data,))
    binds = stage_binds(directory, spec)
    for name in ("plain.csv", "train_1/a.csv", "train_1/b.csv"):
        assert find_inside(binds, data / name) == Path(os.path.realpath(data / name))


def test_a_dataset_of_links_to_single_folders_is_bound_as_the_folder_above_them(tmp_path: Path) -> None:
    """Test it as git-annex and DVC keep files."""
    store = tmp_path / "data" / ".store" / "objects"
    data = tmp_path / "work" / "data"
    inputs = [
        link_to(data / f"{number}.csv", write(store / f"{number:04}"[:2] / f"key-{number}" / f"key-{number}"))
        for number in range(300)
    ]
    directory, spec = make_stage(tmp_path, reads=(data,))
    binds = stage_binds(directory, spec)
    assert {bind.target for bind in binds if not bind.is_writable} == {data, store / "00", store / "01", store / "02"}
    assert all(find_inside(binds, path) == Path(os.path.realpath(path)) for path in inputs)
    assert find_inside(binds, write(tmp_path / "data" / "secret")) is None


def test_links_in_folders_that_take_the_place_of_single_files_are_followed(tmp_path: Path) -> None:
    inputs = []
    for number in range(MOST_BINDS + 1):
        last = write(tmp_path / "third" / str(number) / f"{number}.csv", str(number))
        second = link_to(tmp_path / "second" / str(number) / f"{number}.csv", last)
        inputs.append(link_to(tmp_path / "data" / f"{number}.csv", second))
    (tmp_path / "gpfs").mkdir()
    (tmp_path / "third").rename(tmp_path / "gpfs" / "third")
    (tmp_path / "third").symlink_to(tmp_path / "gpfs" / "third")
    directory, spec = make_stage(tmp_path, *inputs)
    binds = stage_binds(directory, spec)
    assert len(binds) < 6
    assert all(find_inside(binds, path) == Path(os.path.realpath(path)) for path in inputs)


def test_the_run_directory_can_be_written_though_it_lies_in_a_folder_bound_for_many_files(tmp_path: Path) -> None:
    inputs = [
        link_to(tmp_path / "data" / f"{number}.csv", write(tmp_path / "out" / str(number) / f"{number}.csv"))
        for number in range(MOST_BINDS + 1)
    ]
    directory, spec = make_stage(tmp_path, *inputs)
    found = {bind.target: bind.is_writable for bind in stage_binds(directory, spec)}
    assert found == {tmp_path / "data": False, tmp_path / "out": False, directory.path: True}


def test_a_linked_data_folder_whose_links_lead_up_and_out_of_it_is_found(tmp_path: Path) -> None:
    """Test it as git-annex keeps files, in a repository whose data folder alone is linked."""
    repository, data = tmp_path / "project", tmp_path / "home" / "data"
    key = write(repository / ".git" / "annex" / "objects" / "key" / "key")
    link_to(repository / "data" / "a.csv", Path("../.git/annex/objects/key/key"))
    link_to(data, repository / "data")
    asked = (((data / "a.csv",), ()), ((), (data,)), ((data / "a.csv",), (tmp_path / "home",)))
    for number, (inputs, reads) in enumerate(asked):
        directory, spec = make_stage(tmp_path / str(number), *inputs, reads=reads)
        assert find_inside(stage_binds(directory, spec), data / "a.csv") == key


def test_a_link_in_a_folder_that_is_bound_later_is_no_bind_of_its_own(tmp_path: Path) -> None:
    """Apptainer would have to mount over a symbolic link."""
    data, archive = tmp_path / "data", write(tmp_path / "archive" / "a.csv").parent
    link_to(data / "linked", archive)
    directory, spec = make_stage(tmp_path, data / "linked" / "a.csv", reads=(data,))
    binds = stage_binds(directory, spec)
    assert {bind.target for bind in binds} == {data, archive, directory.path}
    assert find_inside(binds, data / "linked" / "a.csv") == archive / "a.csv"


def test_a_linked_file_in_a_folder_of_the_images_own_is_bound_alone(tmp_path: Path) -> None:
    (file,) = [path for path in (Path("/etc/hostname"), Path("/etc/hosts")) if path.is_file()][:1]
    directory, spec = make_stage(tmp_path, link_to(tmp_path / "data" / "a.csv", file))
    binds = stage_binds(directory, spec)
    assert {bind.target for bind in binds} == {tmp_path / "data", file, directory.path}


def test_an_output_directory_behind_a_link_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "scratch" / "out").mkdir(parents=True)
    (tmp_path / "out").symlink_to(tmp_path / "scratch" / "out")
    directory, spec = make_stage(tmp_path)
    (bind,) = stage_binds(directory, spec)
    assert (bind.target, bind.is_writable) == (directory.path, True)


@pytest.mark.parametrize("folder", ["/", "/opt", "/usr", "/etc", "/bin", "/lib", "/proc", "/sys", "/dev"])
def test_what_would_hide_the_images_own_folders_is_not_bound(folder: str, tmp_path: Path) -> None:
    link_to(tmp_path / "data", Path(folder))
    for path in (Path(folder), tmp_path / "data" / "inner"):
        directory, spec = make_stage(tmp_path, reads=(path,))
        if path.exists() or path == Path(folder):
            with pytest.raises(UserError, match=f"^{folder} cannot be bound .* folder that holds the data alone"):
                stage_binds(directory, spec)


def test_the_word_for_apptainer_says_where_and_whether_to_write() -> None:
    here, there = Path("/data"), Path("/gpfs/data")
    assert Bind(here, here, is_writable=True).describe() == "/data"
    assert Bind(here, here).describe() == "/data:/data:ro"
    assert Bind(there, here).describe() == "/gpfs/data:/data:ro"
    assert Bind(there, here, is_writable=True).describe() == "/gpfs/data:/data"
