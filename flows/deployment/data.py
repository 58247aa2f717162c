"""Whether the data of a deployment are there: those without are marked in the UI, and not started."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kdgat.canbus.catalog import load_catalog

NO_DATA: Final = "no data"  # tag
SYNTHETIC: Final = "synthetic"  # the dataset that is made here
_NOTE: Final = "**No data yet.** "
_END: Final = "\n\n"


def missing_folder(parameters: Mapping[str, Any]) -> Path | None:
    """Return the folder that a deployment's recordings should be in and that is not there; None: it needs none.

    New recordings that wait in a night's inbox make its folder.
    """
    data = (parameters.get("config") or {}).get("data") or {}
    dataset, data_root = data.get("dataset"), data.get("data_root")
    if not dataset or not data_root:
        return None
    entry = load_catalog(data.get("catalog")).get(dataset)
    folder = Path(data_root) / dataset if entry is None else entry.folder_in(data_root)
    inbox = parameters.get("inbox")
    waits = inbox is not None and Path(inbox).is_dir() and any(path.is_file() for path in Path(inbox).rglob("*"))
    return None if folder.is_dir() or waits else folder


def how_to_get(folder: Path) -> str:
    """Say how the recordings of a dataset come into its folder."""
    if folder.name == SYNTHETIC:
        return f"`kdgat data synth --out {folder.parent} --dataset {SYNTHETIC}` makes them"
    return "put the recordings there; `kdgat data list` says where to get them"


def marked(tags: Sequence[str], description: str | None, missing: Path | None) -> dict[str, Any]:
    """Return tags and description of a deployment with the mark that its data are missing, or without it."""
    text = description or ""
    if text.startswith(_NOTE):
        text = text.partition(_END)[2]
    kept = [tag for tag in tags if tag != NO_DATA]
    if missing is None:
        return {"tags": kept, "description": text}
    note = f"{_NOTE}{missing} is not there: {how_to_get(missing)}. Then give `make deploy` again."
    return {"tags": [*kept, NO_DATA], "description": f"{note}{_END}{text}"}
