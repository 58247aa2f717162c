"""What a run on trees reads that no stage of it writes: files of trees, and weights to start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kdgat.base import UserError, unknown_key_text
from kdgat.run import EVALUATION, WEIGHTS, FinishedRun, OutputDirectory, PlannedStage, Run
from kdgat.stage import RunDirectory, StageInput, StageInputError
from kdgat.trees.config import DataConfig, TreesConfig
from kdgat.trees.names import FAMILY, FINETUNE, PREPARE, PRETRAIN, START, file_input
from kdgat.trees.plan import plan_trees
from kdgat.trees.reading.collection import (
    SWC_SUFFIXES,
    Collection,
    Refusal,
    TreeSource,
    check_refusals,
    read_folder,
    read_sources,
)
from kdgat.trees.sections import FileConfig
from kdgat.trees.training.splits import split_files
from kdgat.trees.training.start import check_encoder

LOOKED_AT_BYTES = 4 << 20  # of files of text: read within a second


def trees_run(config: TreesConfig) -> Run:
    """Describe a run for what executes it.

    Raises:
        UserError: if the folder of trees, or its table of labels, cannot be used.
        StageInputError: if what it should start from is not there, or is another encoder.
    """
    collection = None if config.data.data_root is None else find_trees(config.data)
    files = [] if collection is None else describe_files(collection, config.data.target)
    if files:  # before anything is started; `prepare`, which knows contents, looks again
        split_files(files, [file.name for file in files], config.data.seed)
        check_classes(files, config)
    plan = plan_trees(config, files)
    starts = {} if config.start_from is None else {
        seed: starting_weights(Path(config.start_from).absolute(), seed) for seed in config.seeds
    }  # fmt: skip
    for path in starts.values():
        check_encoder(path, config.encoder)

    def external_inputs(planned: PlannedStage) -> Mapping[str, StageInput]:
        if planned.stage == PREPARE and collection is not None:
            sources = collection.sources
            return {
                name: StageInput.of_file(path)
                for place, source in enumerate(sources)
                for name, path in {file_input(place): source.path, **_companions(place, source.path)}.items()
            }
        if planned.stage in (FINETUNE, EVALUATION) and planned.seed in starts:
            return {START: StageInput.of_file(starts[planned.seed])}
        return {}

    return Run(FAMILY, config, plan, config.resources, config.training.num_threads, external_inputs)


def _companions(place: int, path: Path) -> dict[str, Path]:
    """Name the files beside a shapefile that say where its lines begin, and in which unit they are."""
    if path.suffix.lower() != ".shp":
        return {}
    beside = sorted(one for one in path.parent.iterdir() if one.stem == path.stem)
    return {f"{file_input(place)}{one.suffix.lower()}": one for one in beside if one.suffix.lower() in (".shx", ".prj")}


def check_files(config: TreesConfig) -> None:
    """Look at files before anything is started: empty ones, and small files of text as a whole.

    Raises:
        UserError: if more of them are unusable than `data.reading.max_bad_fraction` allows.
    """
    if config.data.data_root is None:
        return
    collection = find_trees(config.data)
    sizes = {source.path: source.path.stat().st_size for source in collection.sources}
    texts = [source for source in collection.sources if source.path.suffix.lower() in SWC_SUFFIXES]
    small = texts if sum(sizes[source.path] for source in texts) <= LOOKED_AT_BYTES else []
    refusals = [Refusal(path, "is empty") for path, size in sizes.items() if size == 0]
    _, unreadable = read_sources([source for source in small if sizes[source.path]], config.data.reading)
    check_refusals([*refusals, *unreadable], len(collection.sources), config.data.reading)


def find_trees(data: DataConfig) -> Collection:
    """Find the files of a configuration and their labels; errors of `read_folder`."""
    root = Path(str(data.data_root))
    if not root.exists():
        raise UserError(f"--data-root {root}: there is no such file or folder: check the path")
    return read_folder(root, None if data.labels is None else Path(data.labels))


def describe_files(collection: Collection, target: str | None) -> Sequence[FileConfig]:
    """Return what is known of each file; UserError if the number to predict is not one column of the table."""
    column = 0
    if target is not None and target not in collection.targets:
        known = list(collection.targets)
        raise UserError(f"data.target: {unknown_key_text(target, known) if known else 'the table has no numbers'}")
    if len(collection.targets) > 1 and target is None:
        raise UserError(
            f"the table of labels has the numbers {', '.join(collection.targets)}: choose one by data.target"
        )
    if target is not None:
        column = collection.targets.index(target)

    def describe(source: TreeSource) -> FileConfig:
        return FileConfig(
            name=source.name,
            label=source.label,
            target=source.targets[column] if source.targets else None,
            split=source.split,
            group=source.group,
        )

    return [describe(source) for source in collection.sources]


def check_classes(files: Sequence[FileConfig], config: TreesConfig) -> None:
    """Refuse labels of one class, from which nothing can be learned; UserError says what to give."""
    labels = [file.label for file in files if file.label is not None]
    if config.label_fractions and labels and len(set(labels)) < 2:
        raise UserError(
            f"all {len(labels)} labelled files are of the class {labels[0]!r}: give two classes, or set -O "
            "label_fractions=[]"
        )


def starting_weights(path: Path, seed: int) -> Path:
    """Return the weights of a pretraining: of this seed of a run, or of its only one; or a stage's, or a file's.

    Raises:
        StageInputError: if there are none, or a run has several and none of this seed.
        RunError: if it is a run of another family.
    """
    output = OutputDirectory(path)
    if output.index_path.is_file():
        run = FinishedRun(output, FAMILY)
        records = list(run.records(PRETRAIN))
        if not records:
            advice = run.describe_failed(PRETRAIN) or ": run it to its end"
            raise StageInputError(f"start_from={path}: no pretraining has finished there{advice}")
        of_seed = [record for record in records if record.seed == seed]
        if not of_seed and len(records) > 1:
            seeds = ", ".join(str(record.seed) for record in records)
            raise StageInputError(
                f"start_from={path} has pretrained with the seeds {seeds}, none with {seed}: take --seeds from these, "
                "or name one weights.safetensors for all seeds"
            )
        return run.artifact((of_seed or records)[0], WEIGHTS)
    weights = path if path.is_file() else RunDirectory(path).weights_path
    if not weights.is_file():
        raise StageInputError(
            f"start_from={path}: no run and no weights are there: name the --out of `kdgat train trees`, the directory "
            "of its stage `pretrain`, or a weights.safetensors"
        )
    return weights
