from pathlib import Path

import pytest

from kdgat.cluster.memory import num_oom_kills

V1_LINES = (
    "12:cpuset:/\n9:{controllers}:/slurm_n1/uid_1000/job_7/step_batch\n1:name=systemd:/init.scope\n0::/init.scope\n"
)
V2_LINES = "0::/system.slice/n1_slurmstepd.scope/job_7/step_batch/user/task_0\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text)


@pytest.fixture
def own_cgroups(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "sys"


@pytest.mark.parametrize("controllers", ["memory", "hugetlb,memory"])
def test_kills_are_counted_by_control_groups_version_1(own_cgroups: Path, root: Path, controllers: str) -> None:
    own_cgroups.write_text(V1_LINES.format(controllers=controllers))
    control = root / controllers / "slurm_n1/uid_1000/job_7/step_batch/memory.oom_control"
    write(control, "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert num_oom_kills(own_cgroups, root) == 2


def test_kills_are_counted_by_control_groups_version_2(own_cgroups: Path, root: Path) -> None:
    own_cgroups.write_text(V2_LINES)
    events = root / "system.slice/n1_slurmstepd.scope/job_7/step_batch/user/task_0/memory.events"
    write(events, "low 0\nhigh 0\nmax 31\noom 3\noom_kill 1\noom_group_kill 0\n")
    assert num_oom_kills(own_cgroups, root) == 1


def test_where_nothing_counts_no_kill_is_made_up(own_cgroups: Path, root: Path) -> None:
    assert num_oom_kills(own_cgroups, root) == 0  # no control groups at all
    own_cgroups.write_text(V2_LINES)
    assert num_oom_kills(own_cgroups, root) == 0  # the memory controller is off
    own_cgroups.write_text(V1_LINES.format(controllers="memory"))
    assert num_oom_kills(own_cgroups, root) == 0
    write(root / "memory/slurm_n1/uid_1000/job_7/step_batch/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n")
    assert num_oom_kills(own_cgroups, root) == 0  # a kernel before 4.13


def test_the_control_group_of_this_process_can_be_read() -> None:
    assert num_oom_kills() >= 0
