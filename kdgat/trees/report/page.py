"""Assemble the report of a run on trees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kdgat.base import MIB
from kdgat.report import Document, RunContent, Section, provenance, training
from kdgat.report.document import drawn
from kdgat.run import FinishedRun, OutputDirectory, RunError, StageRecord, Table
from kdgat.trees.evaluation.results import (
    Memory,
    TreesResults,
)
from kdgat.trees.evaluation.tables import fractions, growth_table, order_table, score_table
from kdgat.trees.names import PREPARE
from kdgat.trees.report import figures
from kdgat.trees.sections import KINDS


def document(content: RunContent[TreesResults]) -> Document:
    """Return the report of a run."""
    results, missing = content.results, list(content.missing)
    sections = [
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
        answer=[growth_table(results)],
        facts=_facts(results),
    )


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


def _growth(results: TreesResults) -> Section:
    paragraph = (
        "From a node and its ancestors, and from nothing below, pretraining predicts how long the edges to the children"
        " are, at which angles they leave, how thick they are, and how many there are. Lower is better: earth mover's"
        " distance, and nats of cross entropy for the number of children. The optimum is the least loss that any"
        " prediction can have, where the law is known by which trees were drawn. This distance asks for the median of"
        " what is possible: where children cannot be foreseen, as those of a small angle, predicted histograms are"
        " narrower than the true ones, and a mean of all trees lies nearer to those without knowing any node."
    )
    section = Section("growth", "Growth: are children predicted?", [paragraph])
    for shares in results.shares:
        heading = f"Children by {shares.channel}"
        section.pictures.setdefault(heading, []).append(figures.histogram(shares))
    return section


def _order(results: TreesResults) -> Section | None:
    if not results.order:
        return None
    paragraph = (
        "AUC over pairs of nodes of a test tree: ancestor and descendant against such pairs turned round, and against"
        " pairs of different branches; in the second column against the latter alone. Two baselines need no network:"
        " how much deeper one node lies than the other, and how much larger its subtree is."
    )
    return Section("order", "Order: is an ancestor told from others?", [paragraph], [order_table(results)])


def _scores(results: TreesResults) -> Section | None:
    if not results.scores:
        return None
    paragraph = (
        "All methods get the same number of labelled training trees, and are measured on the same test trees against"
        " their true labels. Probe and kNN use embeddings as they are, fine-tuning trains the whole network; each"
        " stands beside the same without pretraining."
    )
    shares = fractions(results)
    pictures = drawn({"": [figures.scores(results, fraction) for fraction in shares]})
    folded = {"As tables": [score_table(results, fraction) for fraction in shares]}
    title = "What it is worth with labels"
    return Section("scores", title, [paragraph], pictures=pictures, folded=folded, is_open=True)


def _map(results: TreesResults) -> Section | None:
    picture = figures.embedding_map(results)
    if picture is None:
        return None
    paragraph = (
        "The pretrained encoder's embeddings of test trees, on their two first principal axes. It has seen no label."
    )
    return Section("map", "Map of embeddings", [paragraph], pictures={"": [picture]})


def _trees(results: TreesResults) -> Section | None:
    if not results.pictures:
        return None
    paragraph = (
        "In the plane of their two widest axes, each at a scale of its own; the dot is the root, a thicker line a"
        " thicker branch."
    )
    pictures = {"": [figures.tree(one, place) for place, one in enumerate(results.pictures)]}
    return Section("trees", "Test trees", [paragraph], pictures=pictures)


def _memory(results: TreesResults) -> Section | None:
    if results.memory is None:
        return None
    paragraph = "Peak of a pretraining's step on the largest batch: predicted from its nodes and paths, and measured."
    return Section("memory", "Memory", [paragraph], [_memory_table(results.memory)])


def _memory_table(memory: Memory) -> Table:
    error = memory.predicted_bytes / memory.measured_bytes - 1 if memory.measured_bytes else 0.0
    header = ["Where", "Predicted MiB", "Measured MiB", "Prediction by measurement"]
    amounts = [f"{amount / MIB:,.1f}" for amount in (memory.predicted_bytes, memory.measured_bytes)]
    return Table.of(header, [[memory.where, *amounts, f"{error:+.1%}"]], "Peak memory.")


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
    rows = []
    for split, count in results.trees.items():
        nodes = results.nodes.get(split, 0)
        rows.append([split, f"{count:,}", f"{nodes:,}", f"{nodes / count:.1f}" if count else "-"])
    header = ["Split", "Trees", "Nodes", "Nodes per tree"]
    section.tables.append(Table.of(header, rows, f"Median edge of the training trees: {results.median_edge:.4g}."))
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
