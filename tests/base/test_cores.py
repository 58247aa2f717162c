"""How many cores a process may use: a container's quota counts, wherever on the path of its groups it is set."""

from pathlib import Path

import pytest

from kdgat.base import cgroups, cores


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the root of control groups that nobody has set anything in, on a machine of 16 cores."""
    monkeypatch.setattr(cgroups, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cgroups, "OWN_CGROUP", tmp_path / "own")
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: set(range(16)))
    return tmp_path


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("", {}, 16),
        ("0::/a/b", {}, 16),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
        ("0::/a/b", {"a/b/cpu.max": "200000 100000", "a/cpu.max": "300000 100000"}, 2),
        ("0::/a", {"a/cpu.max": "50000 100000"}, 1),
        ("0::/a", {"a/cpu.max": "3200000 100000"}, 16),
        ("0::/of/the/host", {"cpu.max": "250000 100000"}, 2),  # in a container without a namespace of its own
        ("0::/../..", {"cpu.max": "250000 100000"}, 2),
        ("4:cpu,cpuacct:/job", {"cpu,cpuacct/job/cpu.cfs_quota_us": "400000",
                                "cpu,cpuacct/job/cpu.cfs_period_us": "100000"}, 4),
        ("4:cpuacct,cpu:/job", {"cpu/job/cpu.cfs_quota_us": "50000", "cpu/job/cpu.cfs_period_us": "100000"}, 1),
        ("4:cpu:/job", {"cpu/job/cpu.cfs_quota_us": "-1", "cpu/job/cpu.cfs_period_us": "100000"}, 16),
        ("5:memory:/job\n4:cpu:/", {"memory/job/cpu.max": "100000 100000"}, 16),
        ("0::/a", {"a/cpu.max": "words of another kernel"}, 16),
    ],
)  # fmt: skip
def test_the_least_quota_on_the_path_counts(machine: Path, own: str, files: dict[str, str], expected: int) -> None:
    (machine / "own").write_text(own + "\n")
    for name, text in files.items():
        (machine / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (machine / "cgroup" / name).write_text(text + "\n")
    assert cores.num_usable_cores() == expected


def test_a_system_that_has_no_control_groups_has_no_quota(machine: Path) -> None:
    assert cores.num_usable_cores() == 16
