from kdgat.run.finished import curves_of_fits


def test_a_training_curve_merges_rows_of_an_epoch() -> None:
    rows = [
        {"epoch": 0, "step": 1, "train_loss": 3.0},
        {"epoch": 0, "step": 2, "train_loss": 2.0},
        {"epoch": 0, "validation_loss": 2.5, "note": "text", "is_best": True},
        {"epoch": 1, "step": 4, "train_loss": float("nan")},
    ]
    assert curves_of_fits(rows) == {
        "": {
            "epoch": [0.0, 1.0],
            "step": [2.0, 4.0],
            "train_loss": [2.0, None],
            "validation_loss": [2.5, None],
            "is_best": [1.0, None],
        }
    }
