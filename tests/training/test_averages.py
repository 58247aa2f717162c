import math

from kdgat.training.averages import Averages


def test_a_mean_over_no_graphs_is_no_number_and_ends_nothing() -> None:
    averages = Averages()
    averages.log("loss_of_a_class", 0.0, batch_size=0)
    averages.log("loss", 2.0, batch_size=3)
    means = averages.means()
    assert math.isnan(means["loss_of_a_class"])
    assert means["loss"] == 2.0
