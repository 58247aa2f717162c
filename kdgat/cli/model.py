"""`kdgat model`: the models of a registry, which of them is in service, and changing that by hand."""

import getpass
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from kdgat.registry.entry import ModelEntry, RegistryIndex, ServiceChange
    from kdgat.registry.registry import Registry

app = typer.Typer(no_args_is_help=True)

REGISTRY_VARIABLE = "KDGAT_REGISTRY"
FAMILY = "can"

RegistryPath = Annotated[
    Path | None,
    typer.Option("--registry", metavar="DIR", help=f"Directory of the registry (default: ${REGISTRY_VARIABLE})."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
ModelId = Annotated[str, typer.Argument(metavar="ID", help="As in `kdgat model list`.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for the history.")]


class NoRegistryError(ValueError):
    """Nothing says where the registry is."""


class NoServiceError(ValueError):
    """It is not clear whose model is to be rolled back."""


@app.callback()
def model() -> None:
    """List trained models and say which is in service; `kdgat evaluate can --run DIR/models/ID` scores with one."""


@app.command("list")
def list_models(registry: RegistryPath = None, as_json: AsJson = False) -> None:
    """List all models, newest last, with their mean F1 and whether they are in service."""
    from kdgat.cli.tables import output_console

    index = _open(registry).read()
    if as_json:
        _print_json({"in_service": index.services(), "models": [_listed(entry, index) for entry in index.models]})
        return
    console = output_console()
    if not index.models:
        console.print("no model is registered yet")
        return
    table = _table("model", "dataset", "created", "started from", "mean F1", "in service")
    for entry in index.models:
        row = _listed(entry, index)
        table.add_row(
            entry.id,
            entry.dataset,
            entry.created,
            entry.parent or "scratch",
            "-" if row["mean_f1"] is None else f"{row['mean_f1']:.4f}",
            "yes" if row["in_service"] else "",
        )
    console.print(table)


@app.command()
def show(model_id: ModelId, registry: RegistryPath = None, as_json: AsJson = False) -> None:
    """Check a model's files, and show its scores, where it comes from, and when it was in service."""
    from kdgat.cli.tables import output_console

    found = _open(registry)
    index, entry = found.read(), found.entry(model_id)
    found.verify(entry)
    changes = [change for change in index.history if entry.id in (change.model, change.previous)]
    in_service = index.services().get(entry.service) == entry.id
    path = found.model_path(entry.id).absolute()
    if as_json:
        content = entry.model_dump(mode="json")
        history = [change.model_dump(mode="json") for change in changes]
        _print_json({**content, "path": str(path), "in_service": in_service, "history": history})
        return
    console = output_console()
    facts = _table("", "")
    facts.show_header = False
    for name, value in _facts(entry, path, in_service).items():
        facts.add_row(name, value)
    console.print(facts)
    for table in (_scores_table(entry), _history_table(changes, entry.id)):
        if table.row_count:
            console.print()
            console.print(table)


@app.command()
def promote(
    model_id: ModelId, registry: RegistryPath = None, reason: Reason = "by hand", as_json: AsJson = False
) -> None:
    """Check a model's files and put it into service."""
    _print_change(_open(registry).promote(model_id, reason=reason, by=_person()), as_json)


@app.command()
def rollback(
    registry: RegistryPath = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Of which dataset (default: the only one in service).")
    ] = None,
    reason: Reason = "by hand",
    as_json: AsJson = False,
) -> None:
    """Put the model back into service that was in service before the present one."""
    found = _open(registry)
    known = sorted({change.dataset for change in found.read().history if change.family == FAMILY})
    if dataset is None:
        if len(known) != 1:
            raise NoServiceError(
                f"models of {len(known)} datasets are in service: name one of {', '.join(known)} by --dataset"
                if known
                else f"{found.path}: no model is in service, so there is nothing to roll back"
            )
        dataset = known[0]
    elif dataset not in known:
        import difflib

        near = difflib.get_close_matches(dataset, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(known) or 'none'}"
        raise NoServiceError(f"--dataset {dataset}: no model of it is in service; {hint}")
    _print_change(found.rollback(FAMILY, dataset, reason=reason, by=_person()), as_json)


def _open(path: Path | None) -> "Registry":
    from kdgat.registry.registry import Registry

    stated = os.environ.get(REGISTRY_VARIABLE)
    if path is None and not stated:
        raise NoRegistryError(
            f"which registry? Give --registry DIR, or set {REGISTRY_VARIABLE}; it is the directory that the nightly "
            "flow was given as `registry`"
        )
    found = Registry(path if path is not None else Path(stated or ""))
    found.read()
    return found


def _person() -> str:
    """Name who decides; a process without an account in the password file has a number alone."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _listed(entry: "ModelEntry", index: "RegistryIndex") -> dict[str, Any]:
    values = [value for scores in entry.metrics.values() if (value := scores.get("f1")) is not None]
    return {
        "id": entry.id,
        "family": entry.family,
        "dataset": entry.dataset,
        "created": entry.created,
        "parent": entry.parent,
        "mean_f1": sum(values) / len(values) if values else None,
        "in_service": index.services().get(entry.service) == entry.id,
    }


def _facts(entry: "ModelEntry", path: Path, in_service: bool) -> dict[str, str]:
    provenance = entry.provenance
    git = provenance.get("git") or {}
    revision = f"{git.get('revision', 'unknown')}{' with changes' if git.get('dirty') else ''}"
    num_bytes = sum(file.num_bytes for file in entry.files.values())
    facts = {
        "model": entry.id,
        "in service": "yes" if in_service else "no",
        "family": entry.family,
        "dataset": entry.dataset,
        "created": entry.created,
        "started from": entry.parent or "scratch",
        "revision": revision,
        "image": _image(provenance.get("image")),
        "configuration": str(provenance.get("config_hash", "")),
        "recordings": str(len(provenance.get("recordings", {}))),
        "run": str(provenance.get("run", "")),
        "files": f"{len(entry.files)}, {num_bytes / 1e6:.1f} MB, as they were registered",
        "path": str(path),
    }
    return {name: value for name, value in facts.items() if value}


def _image(image: dict[str, Any] | None) -> str:
    """Name a container image with its digest, or with why that is not known."""
    if not image:
        return ""
    digest = image.get("sha256")
    return f"{image.get('path')}, {image.get('doubt') or 'no digest' if digest is None else f'sha256 {digest}'}"


def _scores_table(entry: "ModelEntry") -> "Table":
    from kdgat.can.evaluation.results import format_value

    metrics = ("f1", "precision", "recall", "auc", "false_alarm_rate")
    table = _table("scenario", "windows", "attacks", *metrics)
    for scenario, scores in entry.metrics.items():
        counts = [f"{scores.get(name) or 0:,.0f}" for name in ("num_windows", "num_attack_windows")]
        table.add_row(scenario, *counts, *(format_value(scores.get(name)) for name in metrics))
    return table


def _history_table(changes: "list[ServiceChange]", model_id: str) -> "Table":
    table = _table("when", "what", "by", "why")
    for change in changes:
        what = f"into service, before: {change.previous or 'none'}"
        if change.model != model_id:
            what = f"out of service, since then: {change.model}"
        table.add_row(change.when, f"{change.kind}: {what}", change.by, change.reason)
    return table


def _table(*headings: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _print_change(change: "ServiceChange", as_json: bool) -> None:
    if as_json:
        _print_json(change.model_dump(mode="json"))
    else:
        before = f", before: {change.previous}" if change.previous else ""
        print(f"{change.service}: {change.model} is in service{before}")


def _print_json(content: Any) -> None:
    print(json.dumps(content, indent=2))
