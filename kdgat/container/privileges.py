"""What root may do here: in some virtual machines and containers less than Apptainer takes for granted."""

import os
import re
from pathlib import Path

# As root Apptainer asks for every capability, and starts nothing where one is missing; with this it asks for none.
WITHOUT_PRIVILEGES = {"APPTAINER_NO_PRIVS": "1"}


def apptainer_variables(status: Path = Path("/proc/self/status"), uid: int | None = None) -> dict[str, str]:
    """Return what Apptainer needs in its environment to start containers as this user; nothing for most."""
    if (os.geteuid() if uid is None else uid) != 0:
        return {}
    try:
        last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
        found = re.search(r"^CapBnd:\s*([0-9a-f]+)$", status.read_text(), flags=re.MULTILINE)
    except OSError:  # no Linux, and no Apptainer either
        return {}
    is_full = found is not None and int(found[1], 16) == (1 << (last + 1)) - 1
    return {} if is_full else dict(WITHOUT_PRIVILEGES)
