"""An exported file decides as torch does, says what it is, and is refused when it is something else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from kdgat.base import UserError
from kdgat.can.detection.model_file import DetectorParameters, FileFormat, onnx_bytes, read_model
from kdgat.can.kinds import SMALL_ATTENTION
from kdgat.can.models.runtime import Network
from kdgat.can.sections import AttentionConfig
from kdgat.canbus import windows_to_graphs
from kdgat.canbus.features import EDGE_FEATURES, NODE_FEATURES
from tests.can.detection.untrained import WINDOWS, drive, untrained

CONFIGS = {
    "student": SMALL_ATTENTION,
    "large": AttentionConfig(hidden=6),
    "v2": AttentionConfig(
        conv_type="gatv2", hidden=5, heads=2, activation="gelu", pooling=("max",), node_readout=("logsumexp",)
    ),
    "one layer without edge features": AttentionConfig(
        hidden=8, heads=2, layers=1, stem=16, edge_features=False, node_readout=(), fc_layers=3, pooling=("mean",)
    ),
    "v2 without edge features": AttentionConfig(
        conv_type="gatv2", hidden=4, heads=1, edge_features=False, fc_layers=2, fc_hidden=7, node_readout=("max",)
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("attack", ["DoS", "suppression"])
def test_onnxruntime_decides_as_torch_does(name: str, attack: str) -> None:
    """Also with nodes that nothing leads into, as those that are only waited for."""
    network, graphs = untrained(CONFIGS[name]), windows_to_graphs(drive(attack), WINDOWS)
    content = onnx_bytes(network.weights, network.description, DetectorParameters(name=name))
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    window_logit, node_logit = Network(content).score(graphs)
    expected_window, expected_node = network.logits(graphs)
    np.testing.assert_allclose(window_logit, expected_window, atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(node_logit, expected_node, atol=1e-4, rtol=1e-4)
    for threshold in np.quantile(expected_window, [0.1, 0.5, 0.9]) + 1e-3:
        assert (window_logit >= threshold).tolist() == (expected_window >= threshold).tolist()


def test_one_window_at_a_time_has_the_scores_of_a_batch() -> None:
    network, graphs = untrained(SMALL_ATTENTION), windows_to_graphs(drive(), WINDOWS)
    runner = Network(onnx_bytes(network.weights, network.description, DetectorParameters(name="student")))
    together, of_nodes = runner.score(graphs)
    alone = [runner.score(graphs.select([window])) for window in range(graphs.num_graphs)]
    np.testing.assert_allclose(np.concatenate([window for window, _ in alone]), together, atol=1e-5)
    np.testing.assert_allclose(np.concatenate([nodes for _, nodes in alone]), of_nodes, atol=1e-5)


@pytest.mark.parametrize("file_format", ["onnx", "torch"])
def test_a_file_holds_all_that_deciding_needs(file_format: FileFormat, tmp_path: Path) -> None:
    network, graphs = untrained(SMALL_ATTENTION), windows_to_graphs(drive(), WINDOWS)
    found = read_model(network.write(tmp_path / "student", file_format, threshold=-1.25))
    assert found.parameters.windows == WINDOWS
    assert found.parameters.scaling.temperature == 2.0
    assert found.parameters.threshold == -1.25
    np.testing.assert_allclose(found.network.score(graphs)[0], network.logits(graphs)[0], atol=1e-4)


def test_others_can_read_an_onnx_file_by_itself(tmp_path: Path) -> None:
    path = untrained(SMALL_ATTENTION).write(tmp_path / "student.onnx", threshold=0.5)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    assert metadata["node_features"].split(",") == list(NODE_FEATURES)
    assert metadata["edge_features"].split(",") == list(EDGE_FEATURES)
    assert (metadata["window_size"], metadata["window_stride"]) == ("100", "100")
    assert (metadata["threshold_logit"], metadata["temperature"]) == ("0.5", "2.0")
    assert [value.name for value in session.get_outputs()] == ["window_logit", "node_logit"]


def test_a_file_of_torch_is_loaded_without_pickled_code(tmp_path: Path) -> None:
    network = untrained(SMALL_ATTENTION)
    content = torch.load(network.write(tmp_path / "student.pt", "torch"), weights_only=True)
    network.model.load_state_dict(content["state_dict"])


def test_a_model_that_knows_identifiers_is_refused() -> None:
    network = untrained(AttentionConfig(hidden=4, heads=1, layers=1, id_embedding=4))
    with pytest.raises(UserError, match="id_embedding=4"):
        onnx_bytes(network.weights, network.description, DetectorParameters(name="normal"))


def _foreign(operator: str) -> onnx.ModelProto:
    """Return the ONNX model of somebody else."""
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node(operator, ["x"], ["y"])], "foreign", values[:1], values[1:])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no model")
    torch.save({"weights": torch.zeros(2)}, tmp_path / "other.pt")
    onnx.save(_foreign("Relu"), tmp_path / "foreign.onnx")
    for name in ("text", "foreign.onnx", "other.pt"):
        with pytest.raises(UserError, match=f"/{name} "):
            read_model(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is no ONNX file, or damaged"),
        (b"no model", "is no ONNX file, or damaged"),
        (
            _foreign("Nonsense").SerializeToString(),
            "is an ONNX file that ONNX Runtime ",
        ),
    ],
)
def test_a_bad_file_is_named_with_the_fix_and_not_in_the_words_of_the_runtime(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_model(path)
    said = str(caught.value)
    assert said.startswith(f"{path} {words}")
    assert said.endswith(": export it with kdgat model export")
    assert "ONNXRuntimeError" not in said


def test_a_network_of_other_features_is_refused(tmp_path: Path) -> None:
    network = untrained(SMALL_ATTENTION)
    older = DetectorParameters(name="distill_gat", feature_version=1)
    (tmp_path / "old.onnx").write_bytes(onnx_bytes(network.weights, network.description, older))
    with pytest.raises(UserError, match=r"old\.onnx: trained on features of version 1"):
        read_model(tmp_path / "old.onnx")
