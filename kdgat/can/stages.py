"""The stages of the family: `run(spec, directory)` is what `kdgat stage run` calls.

Inputs are files under these names. Stores: `train`, `injected`, `validation`, `injected_validation`,
`test-<scenario>`; the injected ones may be missing or empty, which is how training without injected attacks looks.
Weights: `autoencoder` of `curriculum`; `teacher` of both `distill_*`; `autoencoder` and `gat` of `fusion`; all of them
under the names of `kdgat.can.kinds.MODELS` for `evaluation`; `start` of any trained stage that does not
start from scratch. `score_recordings` and `comparison` have none, they read what their configuration names.
`kdgat.can.kinds` has the configuration of each.

Preparation loads no network: what the others need is imported when one of them runs.
"""

from kdgat.base import validate_config
from kdgat.can.backend import ACCELERATOR_KEY, KEY, use_backend
from kdgat.can.kinds import KINDS, PREPARE
from kdgat.stage import Outcome, RunDirectory, StageSpec


def run(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Run one stage, or resume it."""
    if spec.stage == PREPARE:
        _choose_backend(spec, spec.execution.get(ACCELERATOR_KEY, "auto"))
        return KINDS[spec.stage].run(spec, directory)
    return _run_with_networks(spec, directory)


def _choose_backend(spec: StageSpec, accelerator: str) -> None:
    backend = spec.execution.get(KEY, "auto")
    use_backend("cpu" if (backend, accelerator) == ("auto", "cpu") else backend)


def _run_with_networks(spec: StageSpec, directory: RunDirectory) -> Outcome:
    from kdgat.can.models.scoring import use_accelerator
    from kdgat.training import TrainingConfig, use_expandable_segments
    from kdgat.training.allocator import keep_freed_memory
    from kdgat.training.random_state import repeatable

    keep_freed_memory()
    use_expandable_segments()
    training = validate_config(TrainingConfig, spec.config.get("training", {}))
    accelerator = spec.execution.get(ACCELERATOR_KEY, training.accelerator)
    use_accelerator(accelerator)
    _choose_backend(spec, accelerator)
    # Scoring too, not only training: what it computes must not depend on the machine's cores, and stages run beside
    # each other. Twice the threads of the machine made scoring several times slower than training.
    is_strict = training.deterministic is True
    with repeatable(training.num_threads, is_strict, strict=is_strict):
        return KINDS[spec.stage].run(spec, directory)
