"""`kdgat model`: the models of a registry, which of them is in service, changing that by hand, and files of one."""

import getpass
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kdgat.base import UserError, say
from kdgat.cli import options

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from kdgat.registry import Judgement, ModelEntry, Registry, ServiceChange
    from kdgat.registry.entry import RegistryIndex

app = typer.Typer(no_args_is_help=True)

REGISTRY_VARIABLE = "KDGAT_REGISTRY"
FAMILY = "can"  # whose models are measured in scenarios of attacks

RegistryPath = Annotated[
    Path | None,
    typer.Option(
        "--registry", metavar="DIR", help=f"Its directory (default: ${REGISTRY_VARIABLE}, then that of `make deploy`)."
    ),
]
ModelId = Annotated[str, typer.Argument(metavar="ID", help="As in `kdgat model list`.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for the history.")]
Hold = Annotated[bool, typer.Option("--hold", help="Keep it there: nights train and report, and replace nothing.")]
Dataset = Annotated[str | None, typer.Option("--dataset", help="Of which dataset (default: the only one in service).")]
OfDataset = Annotated[str | None, typer.Option("--dataset", help="Only models of this dataset.")]


@app.command("list")
def list_models(registry: RegistryPath = None, dataset: OfDataset = None, as_json: options.AsJson = False) -> None:
    """List all models, newest last, with their mean F1, the test set it was measured on, and whether they serve."""
    from kdgat.cli.model_scores import test_set_names
    from kdgat.cli.tables import fitting, output_console
    from kdgat.run import Table

    index = _open(registry).read()
    if dataset is not None:
        known = sorted({entry.dataset for entry in index.models})
        if dataset not in known:
            raise UserError(f"--dataset {dataset}: no model of it is registered; {_nearest(dataset, known)}")
        index = index.of_dataset(dataset)
    if as_json:
        held = {service: _plain(hold) for service, hold in index.holds().items()}
        models = [_listed(entry, index) for entry in index.models]
        _print_json({"in_service": index.services(), "held": held, "models": models})
        return
    console = output_console()
    if not index.models:
        console.print("no model yet: the first night makes one")
        return
    sets = test_set_names(index.models)
    header = ["model", "dataset", "created", "started from", "mean F1", "test set", "in service"]
    rows = []
    for entry in index.models:
        row = _listed(entry, index)
        rows.append(
            [
                entry.id,
                entry.dataset,
                entry.created,
                entry.parent or "scratch",
                "-" if row["mean_f1"] is None else f"{row['mean_f1']:.4f}",
                sets[entry.id],
                ("held" if row["held"] else "yes") if row["in_service"] else "",
            ]
        )
    texts = Table.of(header, rows, "", text_columns=tuple(range(len(header))), is_whole=True)
    for place, table in enumerate(fitting(texts, console)):
        console.print(*([""] if place else []), table, sep="\n")
    if len(set(sets.values())) > len({entry.service for entry in index.models}):
        say(
            "A mean F1 can be compared only within a test set. On the same recordings: "
            "kdgat model compare ID ID --data-root DATA",
            sys.stdout,
        )
    for service, hold in index.holds().items():
        console.print(f"{service}: {hold.model} is {hold.describe_hold()}", markup=False)


@app.command()
def show(model_id: ModelId, registry: RegistryPath = None, as_json: options.AsJson = False) -> None:
    """Check a model's files, and show its scores, where it comes from, when it served, and why it did not."""
    from kdgat.cli.tables import output_console, plain_table

    found = _open(registry)
    index, entry = found.read(), found.entry(model_id)
    found.verify(entry)
    changes = [change for change in index.history if entry.id in (change.model, change.previous)]
    in_service = index.services().get(entry.service) == entry.id
    hold = index.held(entry.family, entry.dataset) if in_service else None
    path = found.model_path(entry.id).absolute()
    if as_json:
        content = entry.model_dump(mode="json")
        held = None if hold is None else _plain(hold)
        history = [_plain(change) for change in changes]
        more = {"path": str(path), "in_service": in_service, "held": held, "history": history}
        more["decisions"] = [decision.model_dump(mode="json") for decision in index.decisions_about(entry.id)]
        _print_json({**content, **more})
        return
    console = output_console()
    facts = plain_table(("name", "value"), whole=("name",))
    facts.show_header = False
    for name, value in _facts(entry, path, in_service, hold).items():
        _add_row(facts, name, value)
    console.print(facts)
    decisions = index.decisions_about(entry.id)
    for table in (*_scores_tables(entry, console), _decisions_table(decisions), _history_table(changes, entry.id)):
        if table.row_count:
            console.print()
            console.print(table)


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="As in `kdgat model list`.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    registry: RegistryPath = None,
    data_root: Annotated[
        Path | None, typer.Option("--data-root", help="Measure both now, on test recordings that neither has seen.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Whose recordings, with --data-root (default: the models').")
    ] = None,
    catalog: Annotated[Path | None, typer.Option("--catalog", help="YAML file with entries of your datasets.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare two models in the scenarios that both were measured on with the same recordings.

    Without --data-root, these are the scores of when they were registered.
    """
    from kdgat.cli.model_scores import comparison_table, measured_scores, registered_scores
    from kdgat.cli.tables import output_console, print_tables

    found = _open(registry)
    entries = found.entry(first), found.entry(second)
    if data_root is None:
        metrics, left_out = registered_scores(*entries)
    else:
        metrics, left_out = measured_scores(found, entries, data_root, dataset, catalog)
    if as_json:
        _print_json({"models": [entry.id for entry in entries], "metrics": metrics, "left_out": left_out})
        return
    console = output_console()
    print_tables(console, [comparison_table(entries, metrics)])
    for name, reason in left_out.items():
        say(f"{name}: {reason}", sys.stdout)


@app.command()
def export(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Output directory of a training, or a registered model's id.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file.")],
    file_format: Annotated[
        Literal["onnx", "torch"], typer.Option("--format", help="onnx for any runtime, or a file that torch loads.")
    ] = "onnx",
    model: Annotated[
        str | None, typer.Option("--model", help="Which attention network (default: the one that `detect` takes).")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of the run (default: its first).")] = None,
    registry: options.IdRegistry = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", metavar="FILE", help="Of `kdgat profile --model`: its threshold.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Write a network with its input scaling, features, windows, scaling of scores and threshold in one file.

    `kdgat detect LOG --model FILE` decides by it as by the run.
    """
    from kdgat.cli.detect import require_runtime

    require_runtime("model export")
    from kdgat.base import check_file
    from kdgat.can.detection.loading import STUDENT, trained_network
    from kdgat.can.detection.model_file import write_model
    from kdgat.can.evaluation.run import FinishedCanRun, detector_of
    from kdgat.can.evaluation.vehicle import LEARN, threshold_for
    from kdgat.can.models.names import ENSEMBLE_MEMBERS
    from kdgat.canbus.profile import Profile
    from kdgat.registry import find_model
    from kdgat.run import OutputDirectory

    check_file(out, "--out")
    finished = FinishedCanRun(OutputDirectory(find_model(run, registry)))
    seed = finished.seeds[0] if seed is None else seed
    usual = detector_of(finished, None, [seed])
    trained = [one for one in ENSEMBLE_MEMBERS if one in finished.weights(seed)]
    read = {STUDENT} if STUDENT in trained else {column for _, column in usual.members}
    model = model or (read.pop() if len(read) == 1 else usual.model)
    if model not in trained:
        raise UserError(f"{model} is not one attention network: give --model, one of {', '.join(trained) or 'none'}")
    detector = detector_of(finished, model, [seed])
    if profile is not None:
        learned = threshold_for(Profile.read(profile), finished, detector)
        if learned is None:
            raise UserError(
                f"--profile {profile} has no threshold of {model} of seed {seed}: learn it by `{LEARN} --detector "
                f"{model} --seed {seed}`"
            )
        detector = detector.at(learned.operating_point)
    network = trained_network(finished, detector, seed, model)
    parameters = network.parameters
    write_model(out, file_format, network.weights, network.description, parameters)
    if not quiet:
        typer.echo(f"{out}: {parameters.name} of seed {parameters.seed}, {out.stat().st_size / 1024:,.0f} kB")


@app.command()
def promote(
    model_id: ModelId,
    registry: RegistryPath = None,
    reason: Reason = "by hand",
    hold: Hold = False,
    as_json: options.AsJson = False,
) -> None:
    """Check a model's files and put it into service; with --hold, also the one that is there already.

    What comes after is held to what this one scores, and no more to what was in service before. Without --hold a hold
    of the dataset ends.
    """
    _print_change(_open(registry).promote(model_id, reason=reason, by=_person(), hold=hold), as_json)


@app.command()
def rollback(
    registry: RegistryPath = None,
    dataset: Dataset = None,
    reason: Reason = "by hand",
    hold: Hold = False,
    as_json: options.AsJson = False,
) -> None:
    """Put the model back into service that was in service before the present one.

    Without --hold the next night may replace it, even by the model that was taken out.
    """
    found = _open(registry)
    change = found.rollback(*_service(found, dataset), reason=reason, by=_person(), hold=hold)
    _print_change(change, as_json)


@app.command()
def release(
    registry: RegistryPath = None,
    dataset: Dataset = None,
    reason: Reason = "by hand",
    as_json: options.AsJson = False,
) -> None:
    """Let nights replace the model that was held by --hold."""
    found = _open(registry)
    _print_change(found.release(*_service(found, dataset), reason=reason, by=_person()), as_json)


def _service(registry: "Registry", dataset: str | None) -> tuple[str, str]:
    """Return family and dataset that was named, or the only one there is; UserError names those there are.

    Where two families have a dataset of one name, FAMILY/DATASET tells them apart.
    """
    pairs = sorted({(change.dataset, change.family) for change in registry.read().history})
    names = [name for name, _ in pairs]
    services = {name if names.count(name) == 1 else f"{family}/{name}": (family, name) for name, family in pairs}
    known = list(services)
    if dataset is None:
        if len(known) != 1:
            raise UserError(
                f"models of {len(known)} datasets are in service: name one of {', '.join(known)} by --dataset"
                if known
                else f"{registry.path}: no model is in service, so there is nothing to change"
            )
        return services[known[0]]
    if dataset not in known:
        raise UserError(f"--dataset {dataset}: no model of it is in service; {_nearest(dataset, known)}")
    return services[dataset]


def _nearest(name: str, known: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there is {', '.join(known) or 'none'}"


def _open(path: Path | None) -> "Registry":
    """Open the registry that was given, that the environment names, or that `make deploy` uses, in this order."""
    from kdgat.registry import Registry

    stated = os.environ.get(REGISTRY_VARIABLE)
    if path is None and not stated:
        from flows.deployment.installation import Installation

        found = Registry(Installation.find().registry)
        if not found.path.is_dir():
            raise UserError(
                f"which registry? There is none in {found.path}: give --registry DIR, or set {REGISTRY_VARIABLE}, or "
                "KDGAT_HOME if `make deploy` was given one"
            )
    else:
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
        "test_sets": {name: entry.test_set(name) for name in entry.metrics},
        "in_service": index.services().get(entry.service) == entry.id,
        "held": entry.id in [hold.model for hold in index.holds().values()],
    }


def _facts(entry: "ModelEntry", path: Path, in_service: bool, hold: "ServiceChange | None") -> dict[str, str]:
    provenance = entry.provenance
    git = provenance.get("git") or {}
    revision = f"{git.get('revision', 'unknown')}{' with changes' if git.get('dirty') else ''}"
    num_bytes = sum(file.num_bytes for file in entry.files.values())
    facts = {
        "model": entry.id,
        "in service": ("yes" if hold is None else hold.describe_hold()) if in_service else "no",
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


def _scores_tables(entry: "ModelEntry", console: "Console") -> "list[Table]":
    """Return the scores in as many tables as the width needs."""
    from kdgat.can.evaluation.tables import format_value
    from kdgat.cli.tables import fitting
    from kdgat.run import Table

    if entry.family != FAMILY:
        measured = [(split, *score) for split, scores in entry.metrics.items() for score in scores.items()]
        rows = [[split, name, format_value(value)] for split, name, value in measured]
        return fitting(Table.of(["split", "metric", "value"], rows, "", text_columns=(0, 1)), console) if rows else []
    metrics = ("f1", "precision", "recall", "auc", "false_alarm_rate")
    rows = []
    for scenario, scores in entry.metrics.items():
        counts = [f"{scores.get(name) or 0:,.0f}" for name in ("num_windows", "num_attack_windows")]
        rows.append([scenario, *counts, *(format_value(scores.get(name)) for name in metrics)])
    return fitting(Table.of(["scenario", "windows", "attacks", *metrics], rows, ""), console) if rows else []


def _decisions_table(decisions: "Sequence[Judgement]") -> "Table":
    from kdgat.cli.tables import plain_table

    table = plain_table(("decided", "result", "reasons"), whole=("decided", "result"))
    for decision in decisions:
        result = "into service" if decision.accepted else "not into service"
        # Below each other: beside each other an id would leave no room for reasons.
        lines = (result, "compared with", decision.compared_with) if decision.compared_with else (result,)
        when = decision.when[:16].replace("T", " ")
        _add_row(table, when, "\n".join(lines), "\n".join(decision.reasons))
    return table


def _history_table(changes: "list[ServiceChange]", model_id: str) -> "Table":
    from kdgat.cli.tables import plain_table

    table = plain_table(("when", "what", "by", "why"), whole=("when",))
    for change in changes:
        what = f"into service, before: {change.previous or 'none'}"
        if change.model != model_id:
            what = f"out of service, since then: {change.model}"
        elif change.hold:
            what = "nights leave it in service" if change.kind == "hold" else f"{what}; nights leave it there"
        elif change.kind == "release":
            what = "nights may replace it"
        _add_row(table, change.when, f"{change.kind}: {what}", change.by, change.reason)
    return table


def _add_row(table: "Table", *cells: str) -> None:
    from rich.markup import escape

    table.add_row(*map(escape, cells))  # a dataset or a reason may hold brackets


def _print_change(change: "ServiceChange", as_json: bool) -> None:
    if as_json:
        _print_json(_plain(change))
    else:
        before = f", before: {change.previous}" if change.previous not in (None, change.model) else ""
        what = "held in service" if change.hold else "in service"
        print(f"{change.service}: {change.model} is {what}{before}")


def _plain(change: "ServiceChange") -> dict[str, Any]:
    return change.model_dump(mode="json")


def _print_json(content: Any) -> None:
    print(json.dumps(content, indent=2))
