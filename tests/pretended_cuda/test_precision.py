from typing import Literal

import pytest
import torch

from kdgat.base import ConfigurationError
from kdgat.training import TrainingConfig
from kdgat.training.device import make_fabric
from tests.pretended_cuda.device import pretended_cuda


@pytest.mark.parametrize("precision", ["bf16-mixed", "tf32"])
def test_what_a_card_has_no_units_for_is_refused(precision: Literal["bf16-mixed", "tf32"]) -> None:
    with (
        pretended_cuda("Tesla V100-SXM2-32GB", (7, 0), ("sm_70",)),
        pytest.raises(ConfigurationError, match=rf"{precision} needs .* Tesla V100-SXM2-32GB has 7\.0: use 32-true"),
    ):
        make_fabric(TrainingConfig(precision=precision))


@pytest.mark.parametrize("precision", ["bf16-mixed", "tf32"])
def test_what_a_card_has_units_for_is_taken(precision: Literal["bf16-mixed", "tf32"]) -> None:
    with pretended_cuda("NVIDIA A100-SXM4-40GB", (8, 0)):
        assert make_fabric(TrainingConfig(precision=precision)).device.type == "cuda"


def test_products_in_half_precision_are_summed_in_single(monkeypatch: pytest.MonkeyPatch) -> None:
    class Products:
        allow_fp16_reduced_precision_reduction = True

    monkeypatch.setattr(torch.backends.cuda, "matmul", Products)
    make_fabric(TrainingConfig())
    assert Products.allow_fp16_reduced_precision_reduction
    make_fabric(TrainingConfig(precision="16-mixed"))
    assert not Products.allow_fp16_reduced_precision_reduction
