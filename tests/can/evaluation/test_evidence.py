"""What a node's features say for its being the cause of an alarm."""

import numpy as np
import pytest

from kdgat.can.evaluation.evidence import flooding
from kdgat.canbus.features import NODE_FEATURES
from kdgat.canbus.features.graphs import round_features


@pytest.mark.parametrize("num_messages", [20, 100, 200, 400])
def test_a_quarter_of_the_messages_is_no_flood_and_one_message_more_is(num_messages: int) -> None:
    counts = np.array([num_messages // 4, num_messages // 4 + 1])
    x = np.zeros((2, len(NODE_FEATURES)), np.float32)
    x[:, NODE_FEATURES.index("count")] = np.log2(counts) / 4.0
    x[:, NODE_FEATURES.index("novelty_maximum")] = 1.0
    round_features(x, NODE_FEATURES)
    assert flooding(x, np.full(2, num_messages)).tolist() == [False, True]
