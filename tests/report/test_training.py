from __future__ import annotations

from typing import Any

import pytest

from kdgat.report import training


def traces(picture: Any) -> dict[str, dict[str, Any]]:
    return {trace.get("legendgroup", ""): trace for trace in picture.figure.to_plotly_json()["data"]}


def test_training_losses_hide_their_parts_until_asked_for() -> None:
    columns = {
        "epoch": [0.0, 1.0],
        "train_loss": [2.0, 0.0],
        "validation_loss": [2.5, 1.5],
        "validation_node_loss": [1.0, 0.5],
        "is_best": [1.0, 1.0],
        "validation_f1": [0.2, None],
        "learning_rate": [0.1, 0.1],
        "train_divergence": [0.1, 0.2],
        "curriculum_hard_fraction": [0.0, 0.5],
    }
    others = {"epoch": [0.0, 1.0], "train_loss": [2.0, 1.0], "val_loss": [2.5, 1.5], "is_best": [1.0, 1.0]}
    of_others = training.losses("Net", {0: others})
    assert [(key.label, key.is_hidden) for key in of_others.keys[:2]] == [("train loss", False), ("val loss", False)]
    assert "seed 0 keeps epoch 1 with validation loss 1.5" in of_others.alternative
    picture = training.losses("GAT", {0: columns, 1: columns})
    hidden = {key.label: key.is_hidden for key in picture.keys}
    assert hidden["train loss"] is hidden["validation loss"] is False
    assert hidden["validation node loss"] is True
    assert traces(picture)["train loss"]["y"] == [2.0, None], "zero has no place on a logarithmic axis"
    assert "seed 1 keeps epoch 1 with validation loss 1.5" in picture.alternative
    assert picture.figure.layout.yaxis.type is None
    steep = training.losses("GAT", {0: {"epoch": [0.0, 1.0], "train_loss": [9.0, 0.01]}})
    assert steep.figure.layout.yaxis.type == "log"
    shares = training.logged_shares("GAT", {0: columns}, ["curriculum_"])
    assert shares is not None
    assert [key.label for key in shares.keys] == ["validation f1"]


@pytest.mark.parametrize(("values", "text"), [([0.02, 0.3], "0.05"), ([1e-6, 10.0], "0.001")])
def test_logarithmic_ticks_cover_the_values(values: list[float], text: str) -> None:
    ticks = training.decade_ticks(values)
    assert min(ticks["tickvals"]) <= min(values)
    assert max(ticks["tickvals"]) >= max(values)
    assert text in ticks["ticktext"]
    assert len(ticks["ticktext"]) < 15
