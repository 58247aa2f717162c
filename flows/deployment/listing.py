"""The deployments of a server in a few lines: which can run, when nights are, and which wait for data."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from flows.deployment.data import missing_folder

PAUSED: Final = "schedule paused"
_WIDTH: Final = 24


def describe(deployments: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Write a line for each deployment that can run, and one for those without data.

    Args:
        deployments: by name, each as the server describes it.
    """
    missing = [name for name, row in deployments.items() if missing_folder(row["parameters"]) is not None]
    lines = [
        f"  {name:{_WIDTH}} {', '.join(_times(row))}".rstrip()
        for name, row in deployments.items()
        if name not in missing
    ]
    if missing:
        lines.append(f"  without data: {_by_dataset(missing)}; `kdgat data list` says where to get them")
    return lines


def _by_dataset(names: Sequence[str]) -> str:
    """Name each dataset once, with the flows that wait for it: `hcrl-ch, set-01 (can-ids and nightly)`."""
    flows: dict[str, list[str]] = {}
    for flow, _, dataset in (name.partition("/") for name in names):
        flows.setdefault(dataset, []).append(flow)
    datasets: dict[str, list[str]] = {}
    for dataset, waiting in flows.items():
        datasets.setdefault(" and ".join(waiting), []).append(dataset)
    return "; ".join(f"{', '.join(found)} ({waiting})" for waiting, found in datasets.items())


def _times(row: Mapping[str, Any]) -> list[str]:
    return [
        f"{schedule['schedule']['cron']} {schedule['schedule']['timezone']}" if schedule["active"] else PAUSED
        for schedule in row["schedules"]
        if "cron" in schedule["schedule"]
    ]
