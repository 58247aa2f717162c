"""How far a store on the device, fixed shapes and a captured step carry the CAN networks on a GPU.

    python benchmarks/gpu_steps.py --out FILE.json
    python benchmarks/gpu_steps.py --device cpu --quick     # equality alone

Rows: a = gathered on the host, b = on the device, c = b padded, d = c captured, e = gather and step captured together.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_capture import Padded, StaticBatch, StaticStep, make_optimizer, pad  # beside this
from lightning.fabric.utilities.apply_func import move_data_to_device
from torch import nn

from kdgat.can.models.attention import GraphAttentionNetwork
from kdgat.can.models.autoencoder import GraphAutoencoder
from kdgat.can.sections import AttentionConfig, AutoencoderConfig
from kdgat.can.training.objective import AutoencoderObjective, DetectionObjective
from kdgat.gpu.networks import NUM_EDGE_FEATURES, NUM_NODE_FEATURES, random_windows
from kdgat.graphs import GraphColumns, TensorColumns
from kdgat.graphs.padding import Capacity, StaticGather
from kdgat.training.averages import Averages

NUM_FEATURES = (NUM_NODE_FEATURES, NUM_EDGE_FEATURES)
STARTED = time.monotonic()


def make_windows(num_graphs: int) -> GraphColumns:
    """Make windows of some 27 nodes and 55 edges."""
    return random_windows(num_graphs, nodes=(17, 38), edges=(35, 76))


def make_model(name: str, device: str, dropout: float | None = None) -> Any:
    """Return a large network from a fixed seed."""
    torch.manual_seed(0)
    changed = {} if dropout is None else {"dropout": dropout}
    if name == "GAT":
        return GraphAttentionNetwork(AttentionConfig(**changed), *NUM_FEATURES).to(device).train()
    return GraphAutoencoder(AutoencoderConfig(**changed), *NUM_FEATURES).to(device).train()


def set_triton(is_on: bool) -> bool:
    """Let attention use its kernels or not; return whether it does."""
    with contextlib.suppress(ImportError):
        from kdgat.can.models import attention_triton, convolution

        usable = attention_triton.__dict__.setdefault("_usable_as_built", attention_triton.is_usable)
        chosen = usable if is_on else lambda _device: False
        for module in (attention_triton, convolution):
            if hasattr(module, "is_usable"):
                module.is_usable = chosen
        return bool(chosen(torch.device("cuda")))
    return False


class Run:
    """One way to take steps: a network, batches, and a row a to e."""

    def __init__(
        self,
        row: str,
        name: str,
        columns: dict[str, TensorColumns],
        device: str,
        size: int,
        dropout: float | None = None,
        autocast: bool = False,
        captures: bool = True,
    ) -> None:
        random = np.random.default_rng(1)
        stored = columns["cpu" if row == "a" else device]
        self.batches = [random.choice(stored.num_graphs, size, replace=False) for _ in range(16)]
        self.model, self.row, self.device, self.columns = make_model(name, device, dropout), row, device, stored
        kind = device.split(":")[0]
        self.autocast = lambda: torch.autocast(kind, torch.bfloat16) if autocast else contextlib.nullcontext()
        parameters = list(self.model.parameters())
        self.objective = (DetectionObjective if name == "GAT" else AutoencoderObjective)(self.model)
        if row in "ab":
            self.optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=1e-2, fused=True)
            self.averages = Averages()
            return
        self.capacity = Capacity.of(stored, self.batches)
        if row == "e":
            self.gather = StaticGather(stored, self.capacity)
            self.gather.choose(self.batches[0])
            read: Callable[[], Any] = self.gather
        else:
            self.static = StaticBatch(pad(stored.gather(self.batches[0]), self.capacity))
            read = self.static
        self.step = StaticStep(Padded(self.objective), read, make_optimizer(parameters), autocast=self.autocast)
        if row in "de" and captures and kind == "cuda":
            self.step.capture()

    def __call__(self, place: int) -> None:
        """Take a step."""
        indices = self.batches[place % len(self.batches)]
        if self.row == "e":
            self.gather.choose(indices)
            self.step()
        elif self.row in "cd":
            self.static.fill(pad(self.columns.gather(indices), self.capacity))
            self.step()
        else:
            self.optimizer.zero_grad(set_to_none=True)
            batch = move_data_to_device(self.columns.gather(indices), torch.device(self.device))
            self.averages.for_batch_of(len(indices))
            with self.averages.listen(self.objective), self.autocast():
                loss = self.objective.training_step(batch)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()

    def weights(self) -> torch.Tensor:
        """Return all weights."""
        return torch.cat([one.detach().flatten() for one in self.model.parameters()]).clone()


def timed(step: Callable[[int], None], size: int) -> dict[str, Any]:
    """Return graphs/s, ms a step (medians of five blocks), kernels a step and their ms."""
    for place in range(3):
        step(place)
    torch.cuda.synchronize()
    started = time.perf_counter()
    step(3)
    torch.cuda.synchronize()
    num = max(3, min(60, int(0.1 / (time.perf_counter() - started))))
    blocks, host, events = [], [], []
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        started = time.perf_counter()
        begin.record()
        for place in range(num):
            step(place)
        end.record()
        host.append(1000 * (time.perf_counter() - started) / num)
        torch.cuda.synchronize()
        blocks.append(1000 * (time.perf_counter() - started) / num)
        events.append(begin.elapsed_time(end) / num)
    took = statistics.median(blocks)
    found = {"graphs_per_s": 1000 * size / took, "ms": took, "host_ms": statistics.median(host)}
    found["device_ms"] = statistics.median(events)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for place in range(3):
            step(place)
        torch.cuda.synchronize()
    kernels = [
        one for one in profile.events()
        if one.device_type == torch.autograd.DeviceType.CUDA
        and not one.name.startswith(("Mem", "Optimizer", "Profiler"))
    ]  # fmt: skip
    found["kernels"] = len(kernels) / 3
    found["kernel_ms"] = sum(one.time_range.elapsed_us() for one in kernels) / 3000
    return found


def equality(columns: dict[str, TensorColumns], device: str) -> dict[str, Any]:
    """Compare the static gather with that of `TensorColumns`, and padded losses and gradients with plain ones."""
    stored, found = columns[device], {}
    random = np.random.default_rng(2)
    chosen = random.choice(stored.num_graphs, 64)
    capacity = Capacity.of(stored, [random.choice(stored.num_graphs, 70), np.concatenate([chosen, chosen[:20]])])
    plain, gather = stored.gather(chosen), StaticGather(stored, capacity)  # fewer graphs than there is room for
    gather.choose(chosen)
    static, padded = gather(), pad(plain, capacity)
    names = ("x", "edge_attr", "edge_index", "y", "node_y", "node_id", "batch", "ptr", "is_graph", "is_node", "is_edge")
    found["static_gather_is_padded_gather"] = all(torch.equal(static[name], padded[name]) for name in names)
    real = {"x": len(plain.x), "edge_attr": len(plain.edge_attr), "y": 64, "node_y": len(plain.x)}
    found["static_gather_is_gather"] = all(torch.equal(static[k][:n], plain[k]) for k, n in real.items())
    num_edges = plain.edge_index.shape[1]
    found["static_edges_are_edges"] = torch.equal(static.edge_index[:, :num_edges], plain.edge_index)
    for name in ("GAT", "VGAE"):
        model = make_model(name, device).eval()
        objective = (DetectionObjective if name == "GAT" else AutoencoderObjective)(model)
        results = []
        for batch in (plain, static):
            with Averages().listen(objective):
                loss = objective.training_step(batch)
            model.zero_grad()
            loss.backward()
            results.append((loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()]).clone()))
        (loss, gradient), (other_loss, other) = results
        found[f"{name}_loss_relative"] = abs(loss - other_loss) / abs(loss)
        found[f"{name}_gradient_relative"] = ((gradient - other).norm() / gradient.norm()).item()
        found[f"{name}_is_equal"] = found[f"{name}_loss_relative"] < 1e-5 and found[f"{name}_gradient_relative"] < 1e-4
    return found


def same_steps(first: Run, second: Run, num: int) -> dict[str, Any]:
    """Return how far the weights of two runs are apart after some steps from the same seed."""
    for run in (first, second):
        torch.manual_seed(7)
        for place in range(num):
            run(place)
    difference = (first.weights() - second.weights()).abs().max().item()
    return {"largest_difference": difference, "is_bit_equal": torch.equal(first.weights(), second.weights())}


def work(arguments: argparse.Namespace) -> None:
    """Run rows a, then e, in the phases that files announce; write the graphs of each into a file."""
    host = make_windows(2048)
    columns = {"cpu": TensorColumns.from_columns(host), "cuda": TensorColumns.from_columns(host, "cuda")}
    set_triton(not arguments.no_triton)
    torch.set_num_threads(1)
    runs = {row: Run(row, "GAT", columns, "cuda", 128) for row in "ae"}
    for run in runs.values():
        for place in range(5):
            run(place)
    torch.cuda.synchronize()
    folder, own = Path(arguments.work_folder), arguments.work_number
    (folder / f"ready-{own}").touch()
    for count in (1, 2, 4, 6):
        for row, run in runs.items():
            while not (folder / f"go-{row}-{count}").exists():
                time.sleep(0.002)
            end, steps = time.perf_counter() + arguments.seconds, 0
            while own < count and time.perf_counter() < end:
                for place in range(4):
                    run(place)
                torch.cuda.synchronize()
                steps += 4
            (folder / f"done-{row}-{count}-{own}.tmp").write_text(str(steps * 128 / arguments.seconds))
            (folder / f"done-{row}-{count}-{own}.tmp").rename(folder / f"done-{row}-{count}-{own}")


def several_processes(arguments: argparse.Namespace) -> dict[str, float]:
    """Return graphs/s of 1 to 6 processes together; those that have no turn wait."""
    with tempfile.TemporaryDirectory() as name:
        folder, found = Path(name), {}
        command = [sys.executable, __file__, "--work-folder", name, "--seconds", str(arguments.seconds)]
        command += ["--no-triton"] if arguments.no_triton else []
        workers = [subprocess.Popen([*command, "--work-number", str(number)]) for number in range(6)]
        try:
            wait_for([folder / f"ready-{number}" for number in range(6)], 60)
            for count in (1, 2, 4, 6):
                for row in "ae":
                    (folder / f"go-{row}-{count}").touch()
                    done = [folder / f"done-{row}-{count}-{number}" for number in range(6)]
                    wait_for(done, 30)
                    found[f"{row}_{count}"] = sum(float(one.read_text()) for one in done)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        return found


def wait_for(files: list[Path], seconds: float) -> None:
    """Wait until files are there. Raises TimeoutError."""
    end = time.monotonic() + seconds
    while not all(file.exists() for file in files):
        if time.monotonic() > end:
            raise TimeoutError(f"after {seconds} s there is no {[file.name for file in files if not file.exists()]}")
        time.sleep(0.005)


def library_step(columns: TensorColumns, size: int, compiles: bool, ours: bool) -> Callable[[int], None]:
    """Return a step of row b of our network, or with PyG's layers in ours, as it is or compiled."""
    from torch_geometric.nn import GATConv

    set_triton(False)
    run = Run("b", "GAT", {"cuda": columns, "cpu": columns}, "cuda", size)
    if not ours:
        config, widths = AttentionConfig(), (64, 384, 384)
        layers = [GATConv(w, config.hidden, config.heads, edge_dim=7, add_self_loops=False) for w in widths]
        run.model.convolutions = nn.ModuleList(layers).cuda()
        run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=1e-3, weight_decay=1e-2, fused=True)
    if compiles:
        eager = run.model.forward

        class Plain:
            pass

        names = ("x", "edge_index", "edge_attr", "node_id", "batch", "ptr")

        def on_tensors(tensors: list[torch.Tensor], num_graphs: int) -> Any:
            batch: Any = Plain()
            for name, tensor in zip(names, tensors, strict=True):
                setattr(batch, name, tensor)
            batch.num_graphs = num_graphs
            return eager(batch)

        compiled = torch.compile(on_tensors, dynamic=True)
        run.model.forward = lambda batch: compiled([batch[name] for name in names], int(batch.num_graphs))
    return run


def library(arguments: argparse.Namespace) -> None:
    """Print the timing of one kind of library step as JSON: in a process of its own, which can be ended."""
    columns, kind = TensorColumns.from_columns(make_windows(2048), "cuda"), arguments.library
    found = {n: timed(library_step(columns, n, "compiled" in kind, "ours" in kind), n) for n in (128, 512)}
    print(json.dumps(found))


class Report:
    """Write what each part found, or why it failed, as soon as it is known."""

    def __init__(self, file: str | None, limit: float, only: Sequence[str] = ()) -> None:
        self.found: dict[str, Any] = {"torch": torch.__version__}
        self.file, self.limit, self.only = file, limit, tuple(only)

    def part(self, name: str, function: Callable[[], Any]) -> Any:
        """Run a part, unless others were asked for."""
        if self.only and not name.startswith(self.only):
            return None
        try:
            left = self.limit - (time.monotonic() - STARTED)
            result = function() if left > 0 else "not run: no time left"
        except Exception as error:  # the others go on
            result = f"{type(error).__name__}: {str(error)[:400]}"
        self.found[name] = result
        shown = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in result.items()} if isinstance(
            result, dict
        ) else result  # fmt: skip
        print(f"{time.monotonic() - STARTED:6.1f} s  {name:34s} {shown}", flush=True)
        if self.file:
            Path(self.file).write_text(json.dumps(self.found, indent=1))
        return result


def measure(report: Report, arguments: argparse.Namespace) -> None:
    """Run all parts on a GPU, those first that decide."""
    host = make_windows(2048 if arguments.quick else 12288)
    columns = {"cpu": TensorColumns.from_columns(host), "cuda": TensorColumns.from_columns(host, "cuda")}
    modes = {"torch": False} if arguments.no_triton or not set_triton(True) else {"triton": True, "torch": False}
    report.found["device"], report.found["modes"] = torch.cuda.get_device_name(), list(modes)

    def rate(row: str, name: str, size: int, triton: bool, **options: Any) -> dict[str, Any]:
        set_triton(triton)
        found = timed(Run(row, name, columns, "cuda", size, **options), size)
        torch.cuda.empty_cache()
        return found

    def same(row: str, triton: bool, strict: bool = False, **options: Any) -> dict[str, Any]:
        set_triton(triton)
        torch.use_deterministic_algorithms(strict)
        try:
            runs = [Run(row, "GAT", columns, "cuda", 128, **options) for _ in range(2)]
            return same_steps(*runs, 30) | {"ms": timed(runs[0], 128)["ms"]}
        finally:
            torch.use_deterministic_algorithms(False)

    def captured_as_eager(row: str, triton: bool, strict: bool) -> dict[str, Any]:
        set_triton(triton)
        torch.use_deterministic_algorithms(strict)
        try:
            eager = Run(row, "GAT", columns, "cuda", 128, dropout=0.0, captures=False)
            return same_steps(eager, Run(row, "GAT", columns, "cuda", 128, dropout=0.0), 20)
        finally:
            torch.use_deterministic_algorithms(False)

    for mode, triton in modes.items():
        set_triton(triton)
        report.part(f"equal {mode}", lambda: equality(columns, "cuda"))
    for size in (128,) if arguments.quick else (128, 512, 2048, 8192):
        for name in ("GAT", "VGAE"):
            for mode, triton in modes.items():
                for row in "abcde" if mode == "torch" else "be":
                    label = f"{row} {name} {size} {mode}"
                    report.part(label, lambda r=row, n=name, s=size, t=triton: rate(r, n, s, t))
        if size != 128:
            continue
        for mode, triton in modes.items():
            for row in "de":
                for strict in (False, True):
                    label = f"captured = eager {row} {mode} deterministic={strict}"
                    report.part(label, lambda r=row, t=triton, s=strict: captured_as_eager(r, t, s))
            for row in "bde":
                for strict in (False, True):
                    label = f"twice {row} {mode} deterministic={strict}"
                    report.part(label, lambda r=row, t=triton, s=strict: same(r, t, s))
    for kind in ("PyG", "PyG compiled", "ours compiled"):
        report.part(f"layers: {kind}", lambda k=kind: in_process(k))
    best = next(iter(modes.values()))
    for row in "be":
        report.part(f"bf16 {row} GAT 512", lambda r=row: rate(r, "GAT", 512, best, autocast=True))
    torch.set_float32_matmul_precision("high")
    for row in "be":
        report.part(f"TF32 {row} GAT 512", lambda r=row: rate(r, "GAT", 512, best))
    torch.set_float32_matmul_precision("highest")
    report.part("processes", lambda: several_processes(arguments))


def in_process(kind: str) -> dict[str, Any]:
    """Time library layers in a process that may take a minute."""
    command = [sys.executable, __file__, "--library", kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, env=dict(os.environ), check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-400:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure, or check on a CPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--no-triton", action="store_true")
    parser.add_argument("--triton", action="store_true", help="beside torch's operations, as without this option")
    parser.add_argument("--only", nargs="+", default=(), help="parts whose names begin so")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds after which no part begins")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each number of processes")
    for hidden in ("--work-folder", "--work-number", "--library"):
        parser.add_argument(hidden, help=argparse.SUPPRESS, type=int if hidden == "--work-number" else str)
    arguments = parser.parse_args()
    if arguments.work_folder:
        work(arguments)
    elif arguments.library:
        library(arguments)
    elif arguments.device == "cpu":
        torch.set_num_threads(1)
        columns = {"cpu": TensorColumns.from_columns(make_windows(200))}
        report = Report(arguments.out, arguments.limit)
        report.part("equal", lambda: equality(columns, "cpu"))
        for row in "ce":
            runs = [Run(one, "GAT", columns, "cpu", 32, dropout=0.0) for one in ("b", row)]
            report.part(f"3 steps, b and {row}", lambda r=runs: same_steps(*r, 3))
    else:
        measure(Report(arguments.out, arguments.limit, arguments.only), arguments)


if __name__ == "__main__":
    main()
