"""`python -m tests.layouts FOLDER`: make the files of the present layout, once for each release that changes it."""

import os
import re
import shutil
import socket
import sys
import tempfile
from pathlib import Path

from flows.watcher import WatcherState
from kdgat.base import write_json_atomically
from kdgat.can.detection.model_file import DetectorParameters
from kdgat.can.evaluation.costs import Costs, ModelCost
from kdgat.can.nightly.comparison import COMPARISON_FILE, Comparison
from kdgat.can.nightly.new_recordings import NightlyLedger, gather_new_recordings
from kdgat.can.nightly.run import choose_run
from kdgat.canbus.simulation import write_dataset
from kdgat.cluster.attendance import Connection
from kdgat.cluster.report import JobFiles, NodeReport
from kdgat.container.agreement import ImageNotes
from kdgat.family.night import NightlyDirectory
from kdgat.family.sweep import SweepRecord, TrialRecord
from kdgat.lap.training.schedule import RATES
from kdgat.registry import Judgement, Registry
from kdgat.run import OutputDirectory
from kdgat.training.batch_size.search import BatchDecision, decision_path, write_decision
from tests.can.small_runs import small_config
from tests.support.command_line import run_kdgat


def make(folder: Path) -> None:
    """Run, register and keep what each kind of file is made of, and leave out what is large or says where that was."""
    output = OutputDirectory(folder / "out")
    words = ("train", "toy", "--out", str(output.path), "-O", "data.points=64", "-O", "training.max_epochs=2")
    assert run_kdgat(*words, timeout_s=600).returncode == 0
    line = output.stage_directory(output.read_index().record("line-seed0"))
    outcome = line.read_outcome()
    report = NodeReport(
        status=0, outcome=outcome, node="n1", stop_reason="", checkpoint=line.newest_checkpoint(), made_progress=True,
        peak_memory_mib=300, was_oom_killed=False, stalled=False,
    )  # fmt: skip
    JobFiles(line, "17").write_report(report)
    decision = BatchDecision(mode="static", unit="nodes", found=100, factor=0.5, size=50, epoch=0, num_batches=2)
    write_decision(decision_path(line.checkpoints_path).parent, decision, line)
    registry = Registry(folder / "registry")
    entry = registry.add({"run.json": b"{}"}, family="can", dataset="cars", content="ab" * 32, metrics={"a": {"f1": 1}})
    registry.promote(entry.id, reason="the first", by="somebody", hold=True)
    registry.note(Judgement(model=entry.id, compared_with=None, accepted=True, reasons=("the first",), by="nightly"))
    write_dataset(folder / "data", "synthetic", "tiny")
    ledger, nights, config = NightlyLedger(), NightlyDirectory(folder / "nights"), small_config(folder / "data")
    choose_run(nights, config, gather_new_recordings(config.data, None, ledger, 0.0), None)
    ledger.write(nights.ledger_path)
    others = folder / "others"
    others.mkdir()
    WatcherState(num_short=2, is_over=True).write(others / "watcher.json")
    Connection(address="tls://127.0.0.1:1", certificate="c", key="k").write(others / "connection.json")
    notes = ImageNotes(size=1, mtime_ns=2, inode=3, sha256="0" * 64, contents={"python": {"python": "3.11"}})
    (others / ".image.sif.kdgat.json").write_text(notes.model_dump_json(indent=2))
    write_json_atomically(others / "server.json", {"command": ["prefect"], "port": 4200, "database": "", "auth": True})
    trial = TrialRecord(values={"training.learning_rate": "0.1"}, config=output.read_index().config)
    sweep = SweepRecord(family="toy", objective="validation", trials=[trial])
    write_json_atomically(others / "sweep.json", sweep.model_dump(mode="json"))
    found = Comparison(metrics={"new": {"a": {"f1": 1.0}}}, recordings=["a/b"], left_out={})
    (others / COMPARISON_FILE).write_text(found.model_dump_json(indent=2))
    cost = ModelCost(num_parameters=1, num_bytes=4, median_ms=1.0, percentile_99_ms=2.0, windows_per_second=3.0)
    Costs(device="cpu", seed=0, num_single=1, batch_size=1, models={"normal": cost}).write(others / "costs.json")
    write_json_atomically(others / "rates.json", RATES["cpu"].model_dump(mode="json"))
    (others / "detector.json").write_text(DetectorParameters(name="distill_gat").model_dump_json(indent=2))
    shutil.rmtree(folder / "data")


def tidy(folder: Path) -> None:
    """Leave out what is large, is no file of a schema, or says where it was made."""
    shutil.rmtree(folder / "out" / "prefect")
    kept = (".sha256", ".safetensors", ".pt", ".json", ".jsonl")
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file() and path.suffix not in kept:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
        elif path.suffix in (".json", ".jsonl"):
            text = path.read_text()
            for own, other in (
                (str(folder), "/home/a/kdgat"),
                (sys.prefix, "/opt/kdgat"),
                (socket.gethostname(), "n1"),
            ):
                text = text.replace(own, other)
            path.write_text(re.sub(r'"(arguments|platform|prefix)": (\[[^]]*\]|"[^"]*")', r'"\1": null', text))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        os.umask(0o022)
        make(Path(made))
        tidy(Path(made))
        shutil.copytree(made, sys.argv[1])
