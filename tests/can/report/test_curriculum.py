from kdgat.can.report.curriculum import curriculum


def test_a_curriculum_is_drawn_as_a_ratio_and_percentages() -> None:
    columns = {
        "epoch": [0.0, 1.0],
        "curriculum_ratio": [1.0, 4.0],
        "curriculum_percentile": [50.0, 90.0],
        "curriculum_hard_fraction": [0.0, 0.5],
    }
    picture = curriculum("GAT, curriculum", {0: columns, 1: columns})
    assert picture is not None
    drawn = [(trace["yaxis"], trace["y"]) for trace in picture.figure.to_plotly_json()["data"]]
    assert drawn == [("y", [1.0, 4.0]), ("y2", [50.0, 90.0]), ("y2", [0.0, 50.0])]
    assert "from 1 to 4 benign windows" in picture.caption
    assert curriculum("GAT", {0: {"epoch": [0.0], "train_loss": [1.0]}}) is None
