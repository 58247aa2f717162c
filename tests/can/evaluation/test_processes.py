"""Windows scored beside this process are scored as in it."""

import os
import signal

import numpy as np
import pytest

from kdgat.base import UserError
from kdgat.can.evaluation import processes
from kdgat.can.evaluation.processes import ScoringProcesses
from kdgat.can.models.runtime import Network
from kdgat.graphs import GraphColumns
from tests.can.evaluation.exported_networks import exported, recorded_graphs


@pytest.fixture(scope="module")
def graphs() -> GraphColumns:
    return recorded_graphs()


@pytest.mark.processes
def test_scores_are_the_same_to_the_bit_on_any_number_of_processes(
    graphs: GraphColumns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "WINDOWS_PER_PIECE", 16)
    models = [exported(graphs, 0), exported(graphs, 1)]
    results = []
    for count in (1, 3):
        with ScoringProcesses(models, count) as scoring:
            begun = scoring.begin(graphs)
            for future in begun.futures:
                future.result()  # so that the others have scored all of them
            results.append(scoring.finish(begun))
        assert (scoring.others_mib > 20) == (count > 1), "the memory of those that were started is known when they end"
    for alone, beside, model in zip(*results, models, strict=True):
        np.testing.assert_array_equal(alone, beside)
        np.testing.assert_allclose(alone, Network(model).score(graphs)[0], atol=1e-5)


@pytest.mark.processes
def test_a_process_that_has_ended_is_asked_once_and_the_others_go_on(
    graphs: GraphColumns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "WINDOWS_PER_PIECE", 4)
    with ScoringProcesses([exported(graphs, 0)], 3) as scoring:
        scoring._all[0].kill()
        scoring._all[0]._process.wait()
        begun = scoring.begin(graphs)
        errors = [future.exception() for future in begun.futures]
        assert len(errors) > 8
        assert sum(isinstance(error, ChildProcessError) for error in errors) <= 1
        scoring._all[1].kill()  # the last one
        scoring._all[1]._process.wait()
        begun = scoring.begin(graphs)
        ours = scoring.finish(begun)
    with ScoringProcesses([exported(graphs, 0)]) as alone:
        np.testing.assert_array_equal(ours[0], alone.finish(alone.begin(graphs))[0])


@pytest.mark.processes
def test_what_ends_in_another_process_is_raised_in_this_one(
    graphs: GraphColumns, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScoringProcesses([exported(graphs, 0, np.nan)], 2) as scoring:
        future = scoring.begin(graphs).futures[0]
        with pytest.raises(UserError, match="no finite score"):
            future.result()
    with ScoringProcesses([exported(graphs, 0)], 2) as scoring:
        scoring.begin(graphs).futures[0].result()
        worker = scoring._all[0]._process
        assert worker is not None
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(ChildProcessError, match="ended with status -9"):
            scoring.begin(graphs).futures[0].result()


@pytest.mark.processes
def test_what_a_process_that_was_killed_leaves_is_scored_here_with_a_warning(
    graphs: GraphColumns, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(processes, "WINDOWS_PER_PIECE", 16)
    with ScoringProcesses([exported(graphs, 0)], 2) as scoring:
        begun = scoring.begin(graphs)
        expected = scoring.finish(begun)
        scoring.begin(graphs).futures[0].result()
        worker = scoring._all[0]._process
        assert worker is not None
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):  # of the group, which are not for it
            os.kill(worker.pid, number)
        scoring.begin(graphs).futures[0].result()
        os.kill(worker.pid, signal.SIGKILL)
        begun = scoring.begin(graphs)
        begun.futures[0].exception()
        again = scoring.finish(begun)
    for before, after in zip(expected, again, strict=True):
        np.testing.assert_array_equal(before, after)
    assert [record.getMessage().count("ended with status -9") for record in caplog.records] == [1]


@pytest.mark.processes
def test_a_process_that_does_not_answer_keeps_nobody_from_leaving(
    graphs: GraphColumns, monkeypatch: pytest.MonkeyPatch
) -> None:
    scoring = ScoringProcesses([exported(graphs, 0)], 2)
    scoring.begin(graphs).futures[0].result()
    worker = scoring._all[0]._process
    assert worker is not None
    os.kill(worker.pid, signal.SIGSTOP)
    scoring.begin(graphs)
    scoring.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert worker.poll() == -signal.SIGKILL
