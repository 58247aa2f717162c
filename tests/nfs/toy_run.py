"""A run of the toy family, with attempts at its training stage as a command makes them, into a folder."""

import contextlib
import sys
from pathlib import Path

from toy_family.family import FAMILY, ToyConfig

from flows.attempts import LocalAttempts, Stage, run_to_end
from kdgat.cluster import StopRequest
from kdgat.run import OutputDirectory, run_locally
from kdgat.run.plan import find_stage
from tests.support.toy import LONG

ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
STAGE = "line-seed0"


def train(out: Path) -> None:
    """Prepare, train in attempts of their own processes, and evaluate."""
    config = ToyConfig.from_preset("quick", {"seeds": [0]}, (*LONG, "training.max_epochs=100"))
    run, output = FAMILY.plan(config), OutputDirectory(out)
    finished = run_locally(run, out, only={"prepare"})
    planned = next(planned for planned in run.plan if planned.name == STAGE)
    directory, spec = find_stage(run, planned, finished, output)
    directory.create(spec)
    with contextlib.closing(LocalAttempts(ENVIRONMENT)) as runner:
        stage = Stage(
            directory,
            runner=runner,
            stop=StopRequest(),
            attempt_context=lambda record, body: body(print, lambda progress: None, lambda *words: print(*words)),
            on_line=lambda line: print(line, flush=True),
        )
        conclusion = run_to_end(stage)
    print(f"conclusion: {conclusion}", flush=True)
    assert list(run_locally(run, out)) == [planned.name for planned in run.plan]


if __name__ == "__main__":
    train(Path(sys.argv[1]))
