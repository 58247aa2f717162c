"""Networks of PyG that nobody here wrote, killed between steps and resumed; and a whole run, in this process."""

from pathlib import Path
from typing import Any

import pytest

from kdgat.api import train
from kdgat.experiment.check import check
from kdgat.experiment.config import ExperimentConfig

HEADER = """
import torch
from lightning import LightningModule
from torch_geometric.data import Data
from torch_geometric.datasets import FakeDataset, FakeHeteroDataset
from torch_geometric.nn import HeteroConv, SAGEConv, global_mean_pool
from torch_geometric.nn.models import GAT, GCN, GIN, PNA, AttentiveFP, GraphSAGE, SchNet
from torch_geometric.utils import negative_sampling
from kdgat.experiment import Experiment


class Net(LightningModule):
    def __init__(self, hidden: int = 8):
        super().__init__()
        {model}

    def predicted(self, batch):
        {forward}

    def loss(self, batch):
        {loss}

    def training_step(self, batch):
        return self.loss(batch)

    def validation_step(self, batch):
        self.log("val_loss", self.loss(batch))


def data(graphs: int = 16):
    torch.manual_seed(1)
    {data}
    return found[: graphs // 2], found[graphs // 2 :]


experiment = Experiment(Net, data, training={{"monitor": "val_loss", "batch_size": 4}})
"""
POOLED = "return self.head(global_mean_pool({}, batch.batch))"
CLASSES = "return torch.nn.functional.cross_entropy(self.predicted(batch), batch.y)"
FAKE = "found = list(FakeDataset(num_graphs=graphs, avg_num_nodes=8, num_channels=4, edge_dim=3, num_classes=3))"
MOLECULES = """found = [
        Data(z=torch.randint(1, 9, (6,)), pos=torch.randn(6, 3) * 2, y=torch.randn(1)) for _ in range(graphs)
    ]"""
OF_MOLECULES = "return torch.nn.functional.mse_loss(self.predicted(batch).view(-1), batch.y)"
HEAD = "; self.head = torch.nn.Linear(hidden, 3)"
ENCODED = POOLED.format("self.net(batch.x, batch.edge_index)")
MODELS = {
    "GIN": (f"self.net = GIN(4, hidden, 2, dropout=0.1){HEAD}", ENCODED, CLASSES, FAKE),
    "GAT": (f"self.net = GAT(4, hidden, 2, heads=2, dropout=0.3){HEAD}", ENCODED, CLASSES, FAKE),
    "GraphSAGE": (f"self.net = GraphSAGE(4, hidden, 2, norm='BatchNorm'){HEAD}", ENCODED, CLASSES, FAKE),
    "PNA": (
        "self.net = PNA(4, hidden, 2, aggregators=['mean', 'max', 'std'], scalers=['identity', 'amplification'], "
        f"deg=torch.tensor([0, 1, 4, 8, 4])){HEAD}",
        ENCODED, CLASSES, FAKE,
    ),
    "SchNet": (
        "self.net = SchNet(hidden, 8, 2, 8, interaction_graph=everyone)",
        "return self.net(batch.z, batch.pos, batch.batch)", OF_MOLECULES, MOLECULES,
    ),
    "AttentiveFP": (
        "self.net = AttentiveFP(4, hidden, 3, edge_dim=3, num_layers=2, num_timesteps=2, dropout=0.2)",
        "return self.net(batch.x, batch.edge_index, batch.edge_attr, batch.batch)", CLASSES, FAKE,
    ),
    "several types of nodes": (
        "sizes = data()[0][0].num_features; self.lift = torch.nn.ModuleDict("
        "{kind: torch.nn.Linear(size, hidden) for kind, size in sizes.items()}); "
        f"self.net = HeteroConv({{edges: SAGEConv(hidden, hidden) for edges in data()[0][0].edge_types}}){HEAD}",
        "lifted = {kind: self.lift[kind](x) for kind, x in batch.x_dict.items()}\n"
        "        found = self.net(lifted, batch.edge_index_dict)['v0']\n"
        "        return self.head(global_mean_pool(found, batch['v0'].batch))",
        CLASSES,
        "found = list(FakeHeteroDataset(num_graphs=graphs, num_node_types=2, num_edge_types=3, avg_num_nodes=8,"
        " num_classes=3))",
    ),
    "links": (
        "self.net = GCN(4, hidden, 2)",
        "return self.net(batch.x, batch.edge_index)",
        """h = self.predicted(batch)
        other = negative_sampling(batch.edge_index, batch.num_nodes)
        scores = [(h[edges[0]] * h[edges[1]]).sum(1) for edges in (batch.edge_index, other)]
        wanted = [torch.ones_like(scores[0]), torch.zeros_like(scores[1])]
        return torch.nn.functional.binary_cross_entropy_with_logits(torch.cat(scores), torch.cat(wanted))""",
        FAKE,
    ),
    "nodes of one graph": (
        "self.net = GCN(4, hidden, 2, dropout=0.5); self.head = torch.nn.Linear(hidden, 3)",
        "return self.head(self.net(batch.x, batch.edge_index))",
        "return torch.nn.functional.cross_entropy(self.predicted(batch), batch.y)",
        "found = [FakeDataset(num_graphs=1, avg_num_nodes=40, num_channels=4, num_classes=3, task='node')[0]] * graphs",
    ),
}  # fmt: skip
MORE = '''
def everyone(pos, batch):
    """Connect all atoms of a molecule: torch-cluster, which PyG's own radius graph needs, is not part of an image."""
    row, column = torch.nonzero(batch[:, None] == batch[None, :], as_tuple=True)
    edges = torch.stack([row[row != column], column[row != column]])
    return edges, (pos[edges[0]] - pos[edges[1]]).norm(dim=1)

'''


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_is_killed_ends_with_the_same_weights(tmp_path: Path, name: str) -> None:
    model, forward, loss, data = MODELS[name]
    path = tmp_path / "net.py"
    text = HEADER.format(model=model, forward=forward, loss=loss, data=data)
    before, _, last = text.rpartition("\n\nexperiment")
    path.write_text(f"{before}\n{MORE}\n\nexperiment{last}")
    config = ExperimentConfig.from_preset("quick", {"source": str(path)})
    (found,) = check(config)
    assert found.problem == ""


def test_random_numbers_that_no_checkpoint_holds_are_found_and_named(source: Path) -> None:
    text = source.read_text().replace(
        "        loss = self.error(batch)\n", "        loss = self.error(batch) * GENERATOR.uniform(0.5, 2)\n", 1
    )
    source.write_text(text.replace("class Net(", "import random\n\nGENERATOR = random.Random(3)\n\n\nclass Net(", 1))
    found = list(check(ExperimentConfig.from_preset("quick", {"source": str(source)})))
    assert "differs before step" in found[0].problem
    assert "usual reasons" in found[0].problem


def test_a_run_of_a_file_leaves_weights_metrics_and_a_report(source: Path, tmp_path: Path) -> None:
    run = train("experiment", tmp_path / "run", source=str(source), seeds=[0, 1], quiet=True)
    assert run.state == "finished"
    assert list(run.results.index) == ["test.error"]
    assert (tmp_path / "run" / "report.html").is_file()
    first, second = (run.load_model(stage, seed=0) for stage in ("small", "large"))
    frozen = "encoder.convs.0.nn.lins.0.weight"
    assert (first.state_dict()[frozen] == second.state_dict()[frozen]).all()
    assert not (first.head.weight == second.head.weight).all()


def test_a_change_of_the_module_alone_prepares_nothing_anew(source: Path, tmp_path: Path) -> None:
    train("experiment", tmp_path / "run", source=str(source), quiet=True)
    source.write_text(source.read_text().replace("mse_loss", "l1_loss"))
    again = train("experiment", tmp_path / "run", source=str(source), quiet=True)
    states = again.stages["state"]
    assert states["prepare"] == states["prepare-large"] == "cached"
    assert states["small-seed0"] == states["large-seed0"] == "finished"


OF_ITS_OWN = """
class Net(Net):
    def __init__(self, hidden: int = 8):
        super().__init__(hidden)
        self.features = torch.randn(4)
        self.threshold = 0.0
        self.seen = None

    def on_validation_epoch_end(self):
        self.threshold = 0.5

    def on_test_epoch_start(self):
        self.seen = []

    def test_step(self, batch):
        self.seen.append(1)
        self.log("test_threshold", self.threshold)
        self.log("test_features", self.features.sum())

    def on_train_start(self):
        print("features", float(self.features.sum()))


experiment"""


def test_an_evaluation_has_the_module_as_it_was_trained(source: Path, tmp_path: Path, capsys: Any) -> None:
    source.write_text(source.read_text().replace("\nexperiment", OF_ITS_OWN, 1))
    run = train("experiment", tmp_path / "run", source=str(source), seeds=[3], quiet=True)
    results = run.results["value"]
    assert results["test.threshold"] == 0.5
    trained = {line for line in capsys.readouterr().out.splitlines() if line.startswith("features")}
    assert [float(line.split()[1]) for line in trained] == [pytest.approx(results["test.features"], abs=1e-6)]
    loaded = run.load_model("large", seed=3)
    assert loaded.threshold == 0.5
    assert float(loaded.features.sum()) == pytest.approx(results["test.features"], abs=1e-6)


def test_an_evaluation_that_fails_is_found(source: Path) -> None:
    text = source.read_text()
    source.write_text(text.replace('self.log("test_error", self.error(batch))', "self.log(batch.no_such_thing)"))
    found = list(check(ExperimentConfig.from_preset("quick", {"source": str(source)})))
    assert [(one.what, bool(one.problem)) for one in found if one.problem] == [("an evaluation", True)] * 2
