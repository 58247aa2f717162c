"""Assemble the report of a run on trees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kdgat.base import MIB
from kdgat.report import Document, RunContent, Section, provenance, training
from kdgat.run import FinishedRun, OutputDirectory, RunError, StageRecord, Table
from kdgat.run.table import Cell
from kdgat.trees.evaluation.results import (
    FINETUNED,
    OPTIMUM,
    PROBE,
    SCRATCH,
    TRAINED,
    Memory,
    TreesResults,
    with_untrained,
)
from kdgat.trees.evaluation.tables import fractions, growth_table, order_table, score_table
from kdgat.trees.names import PREPARE
from kdgat.trees.report import figures
from kdgat.trees.sections import KINDS

TEMPLATE: Final = "trees.html"
TOTAL: Final = "total"
Card = dict[str, Any]


def document(content: RunContent[TreesResults]) -> Document:
    """Return the report of a run."""
    results, missing = content.results, list(content.missing)
    sections = [
        _meaning(results),
        _growth(results),
        _order(results),
        _scores(results),
        _map(results),
        _trees(results),
        _memory(results),
        _training(content, missing),
        _data(content, missing),
        provenance(content),
    ]
    return Document(
        title="Self-supervised learning on geometric trees",
        sections=[section for section in sections if section is not None],
        missing=missing,
        template=TEMPLATE,
        package=__package__,
        content={
            "results": results,
            "revision": content.revision,
            "cards": _cards(results),
            "facts": _facts(results),
        },
    )


def _cards(results: TreesResults) -> list[Card]:
    cards = [_growth_card(results), _order_card(results)]
    for name, own, other in (
        ("Linear probe", PROBE, with_untrained(PROBE)),
        ("Fine-tuned", FINETUNED, SCRATCH),
    ):
        cards.append(_score_card(results, name, own, other))
    return [card for card in cards if card is not None]


def _growth_card(results: TreesResults) -> Card | None:
    losses, baseline = results.growth_of(TOTAL), results.best_baseline(TOTAL)
    if baseline is None or TRAINED not in losses or losses[baseline].mean <= 0:
        return None
    gain = 1 - losses[TRAINED].mean / losses[baseline].mean
    lines = [f"{losses[TRAINED].mean:.3f} against {losses[baseline].mean:.3f} ({baseline})"]
    way = ", ".join(f"{channel} {share:.0%}" for channel, share in _way_to_optimum(results).items())
    if way:
        lines.append(f"of the way from the best baseline to the optimum: {way}")
    unit = "lower loss" if gain >= 0 else "higher loss"
    return {"name": "Growth", "value": f"{abs(gain):.0%}", "unit": unit, "lines": lines}


def _way_to_optimum(results: TreesResults) -> dict[str, float]:
    """Return which part of the way from the best baseline to the optimum is covered, by channel that has one."""
    found = {}
    for channel in dict.fromkeys(row.channel for row in results.growth):
        losses, baseline = results.growth_of(channel), results.best_baseline(channel)
        if baseline is None or not {TRAINED, OPTIMUM} <= set(losses):
            continue
        whole = losses[baseline].mean - losses[OPTIMUM].mean
        if whole > 0:
            found[channel] = (losses[baseline].mean - losses[TRAINED].mean) / whole
    return found


def _order_card(results: TreesResults) -> Card | None:
    aucs = {row.method: row.auc for row in results.order}
    if TRAINED not in aucs:
        return None
    others = {method: auc.mean for method, auc in aucs.items() if method != TRAINED}
    best = max(others, key=lambda method: others[method], default=None)
    lines = ["of telling ancestors and descendants from other pairs"]
    lines += [f"best baseline {others[best]:.3f}: {best}"] if best is not None else []
    return {"name": "Order", "value": f"{aucs[TRAINED].mean:.3f}", "unit": "AUC", "lines": lines}


def _score_card(results: TreesResults, name: str, method: str, other: str) -> Card | None:
    """Compare two methods at the smallest share of the labels that both had."""
    for fraction in fractions(results):
        own, against = results.score_of(method, fraction), results.score_of(other, fraction)
        if own is None or against is None:
            continue
        interval = f"95% interval {own.low:.3f} to {own.high:.3f}" if own.count > 1 else "one seed"
        return {
            "name": f"{name}, {fraction:.0%} of the labels",
            "value": f"{own.mean:.3f}",
            "unit": _unit(results),
            "lines": [interval, f"{other}: {against.text}"],
        }
    return None


def _unit(results: TreesResults) -> str:
    return "R²" if results.task == "number" else "accuracy"


def _facts(results: TreesResults) -> Mapping[str, str]:
    splits = ", ".join(f"{count:,} {name}" for name, count in results.trees.items())
    facts = {"Trees": f"{splits}; median edge {results.median_edge:.4g}, which is length 1 to the network."}
    if results.task == "classes":
        facts["Task"] = f"{len(results.classes)} classes: {', '.join(results.classes)}."
    elif results.task == "number":
        facts["Task"] = "A number of each tree."
    else:
        facts["Task"] = "None: the trees have no labels, so only what pretraining predicts is measured."
    if results.num_parameters:
        counts = ", ".join(f"{name} {count:,}" for name, count in results.num_parameters.items())
        facts["Parameters"] = f"{counts}."
    return facts


def _meaning(results: TreesResults) -> Section:
    section = Section("meaning", "What it comes to")
    section.paragraphs += [f"{text[:1].upper()}{text[1:]}." for text in results.conclusions]
    return section


def _growth(results: TreesResults) -> Section:
    section = Section("growth", "Growth: are children predicted?")
    section.paragraphs.append(
        "From a node and its ancestors, and from nothing below, pretraining predicts how long the edges to the children"
        " are, at which angles they leave, how thick they are, and how many there are. Lower is better: earth mover's"
        " distance, and nats of cross entropy for the number of children. The optimum is the least loss that any"
        " prediction can have, where the law is known by which trees were drawn. This distance asks for the median of"
        " what is possible: where children cannot be foreseen, as those of a small angle, predicted histograms are"
        " narrower than the true ones, and a mean of all trees lies nearer to those without knowing any node."
    )
    section.tables.append(growth_table(results))
    for shares in results.shares:
        heading = f"Children by {shares.channel}"
        section.pictures.setdefault(heading, []).append(figures.histogram(shares))
    return section


def _order(results: TreesResults) -> Section | None:
    if not results.order:
        return None
    section = Section("order", "Order: is an ancestor told from others?")
    section.paragraphs.append(
        "AUC over pairs of nodes of a test tree: ancestor and descendant against such pairs turned round, and against"
        " pairs of different branches; in the second column against the latter alone. Two baselines need no network:"
        " how much deeper one node lies than the other, and how much larger its subtree is."
    )
    section.tables.append(order_table(results))
    return section


def _scores(results: TreesResults) -> Section | None:
    if not results.scores:
        return None
    section = Section("scores", "What it is worth with labels")
    section.paragraphs.append(
        "All methods get the same number of labelled training trees, and are measured on the same test trees against"
        " their true labels. Probe and kNN use embeddings as they are, fine-tuning trains the whole network; each"
        " stands beside the same without pretraining."
    )
    shares = fractions(results)
    pictures = [figures.scores(results, fraction) for fraction in shares]
    section.pictures[""] = [picture for picture in pictures if picture is not None]
    section.folded["As tables"] = [score_table(results, fraction) for fraction in shares]
    return section


def _map(results: TreesResults) -> Section | None:
    picture = figures.embedding_map(results)
    if picture is None:
        return None
    section = Section("map", "Map of embeddings")
    section.paragraphs.append(
        "The pretrained encoder's embeddings of test trees, on their two first principal axes. It has seen no label."
    )
    section.pictures[""] = [picture]
    return section


def _trees(results: TreesResults) -> Section | None:
    if not results.pictures:
        return None
    section = Section("trees", "Test trees")
    section.paragraphs.append(
        "In the plane of their two widest axes, each at a scale of its own; the dot is the root, a thicker line a"
        " thicker branch."
    )
    section.pictures[""] = [figures.tree(drawn, place) for place, drawn in enumerate(results.pictures)]
    return section


def _memory(results: TreesResults) -> Section | None:
    if results.memory is None:
        return None
    section = Section("memory", "Memory")
    section.paragraphs.append(
        "Peak of a pretraining's step on the largest batch: predicted from its nodes and paths, and measured."
    )
    section.tables.append(_memory_table(results.memory))
    return section


def _memory_table(memory: Memory) -> Table:
    error = memory.predicted_bytes / memory.measured_bytes - 1 if memory.measured_bytes else 0.0
    header = [Cell("Where"), Cell("Predicted MiB"), Cell("Measured MiB"), Cell("Prediction by measurement")]
    row = [
        Cell(memory.where),
        Cell(f"{memory.predicted_bytes / MIB:,.1f}"),
        Cell(f"{memory.measured_bytes / MIB:,.1f}"),
        Cell(f"{error:+.1%}"),
    ]
    return Table(header, [row], "Peak memory.")


def _training(content: RunContent[TreesResults], missing: list[str]) -> Section:
    by_stage = training.curves_by_stage(content.stages, _name_of_fit)
    if not by_stage:
        missing.append("No training curves in the stage directories.")
    return training.training_section(
        by_stage,
        "One line per seed; the star marks the epoch whose weights are kept. Click a legend entry to show or hide its"
        " lines.",
    )


def _name_of_fit(record: StageRecord, fit: str) -> str:
    title = KINDS[record.stage].title or record.stage
    return f"{title}, {fit.removesuffix('pct')}% of the labels" if fit else title


def _data(content: RunContent[TreesResults], missing: list[str]) -> Section:
    results, section = content.results, Section("data", "Data")
    header = [Cell("Split"), Cell("Trees"), Cell("Nodes"), Cell("Nodes per tree")]
    rows = [
        [
            Cell(split),
            Cell(f"{count:,}"),
            Cell(f"{results.nodes.get(split, 0):,}"),
            Cell(f"{results.nodes.get(split, 0) / count:.1f}" if count else "-"),
        ]
        for split, count in results.trees.items()
    ]
    section.tables.append(Table(header, rows, f"Median edge of the training trees: {results.median_edge:.4g}."))
    summary = _preparation(content, missing)
    if summary is None:
        return section
    refused = [f"{path}: {reason}" for path, reason in summary.get("refused", [])]
    notes = list(summary.get("notes", []))
    low, high = summary["length_range"]
    section.paragraphs.append(
        f"Of the training trees' edges 99% are {low:.3g} to {high:.3g} median edges long: there growth is compared."
        f" Files refused: {len(refused):,}; repairs made while reading: {len(notes):,}."
    )
    for title, lines in (("Refused, and why", refused), ("Repaired", notes)):
        if lines:
            section.folded_text[f"{title} ({len(lines):,})"] = "\n".join(lines)
    return section


def _preparation(content: RunContent[TreesResults], missing: list[str]) -> Any | None:
    """Return what the preparation wrote of files and repairs; None, and a sentence, if it is not there."""
    if content.index is None:
        return None
    try:
        return FinishedRun(OutputDirectory(content.path)).summary(PREPARE, "summary")
    except (RunError, OSError) as error:
        missing.append(f"What was refused and repaired: {error}")
        return None
