from pathlib import Path

import pytest

from kdgat.container.apptainer import apptainer_variables

LAST = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
FULL = (1 << (LAST + 1)) - 1
SYS_RESOURCE = 24


@pytest.mark.parametrize(
    ("uid", "capabilities", "expected"),
    [
        (0, FULL, {}),
        (0, FULL & ~(1 << SYS_RESOURCE), {"APPTAINER_NO_PRIVS": "1"}),
        (1000, 0, {}),
    ],
)
def test_apptainer_is_told_to_do_without_privileges_only_where_root_lacks_some(
    uid: int, capabilities: int, expected: dict[str, str], tmp_path: Path
) -> None:
    status = tmp_path / "status"
    status.write_text(f"Name:\tbash\nCapBnd:\t{capabilities:016x}\nCapAmb:\t0000000000000000\n")
    assert apptainer_variables(status, uid) == expected
