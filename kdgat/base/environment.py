"""What the processes that kdgat starts get of its environment: nothing that is meant for other programs of a person."""

from collections.abc import Mapping
from typing import Final

# With these every Python ends at a mere warning, waits for somebody to type, or prints what nobody can read.
PYTHON_OPTIONS: Final = ("PYTHONINSPECT", "PYTHONWARNINGS", "PYTHONVERBOSE")
OWN_HOSTS: Final = "127.0.0.1,::1,localhost"  # for which no proxy is asked
NO_PROXY_AT_ALL: Final = f"{OWN_HOSTS},*"  # of a process which can do nothing with the one that is named


def of_children(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment as a process gets it that this one starts.

    >>> of_children({"PYTHONINSPECT": "1", "no_proxy": "a.example,127.0.0.1,::1,localhost,*"})
    {'no_proxy': 'a.example,127.0.0.1,::1,localhost'}
    """
    kept = {name: value for name, value in environment.items() if name not in PYTHON_OPTIONS}
    for name in ("no_proxy", "NO_PROXY"):
        if kept.get(name, "").endswith(NO_PROXY_AT_ALL):
            kept[name] = kept[name].removesuffix(",*")
    return kept
