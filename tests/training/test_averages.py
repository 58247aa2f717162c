import math

import pytest

from kdgat.base import UserError
from kdgat.training.averages import Averages


def test_a_mean_over_no_graphs_is_no_number_and_ends_nothing() -> None:
    averages = Averages()
    averages.log("loss_of_a_class", 0.0, batch_size=0)
    averages.log("loss", 2.0, batch_size=3)
    means = averages.means()
    assert math.isnan(means["loss_of_a_class"])
    assert means["loss"] == 2.0


def test_what_is_no_mean_is_refused_in_a_dictionary_too() -> None:
    averages = Averages()
    averages.log_dict({"loss": 1.0}, prog_bar=True, batch_size=2)
    with pytest.raises(UserError, match="reduce_fx='sum'"):
        averages.log_dict({"loss": 1.0}, reduce_fx="sum")
