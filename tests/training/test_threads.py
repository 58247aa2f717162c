"""Threads of torch: one while a measurement lasts."""

import torch

from kdgat.training import one_thread


def test_one_thread_lasts_as_long_as_its_context() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
