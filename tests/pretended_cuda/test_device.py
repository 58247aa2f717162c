import pytest
import torch

from tests.pretended_cuda.device import Seen


def test_operators_on_two_devices_are_refused() -> None:
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu"):
        torch.ones(2, device="cuda") + torch.ones(2)


def test_a_tensor_of_the_device_is_no_array() -> None:
    with pytest.raises(TypeError, match=r"can't convert cuda:0 device type tensor to numpy"):
        torch.ones(2, device="cuda").numpy()


def test_uploads_launches_and_waits_are_counted(seen: Seen) -> None:
    seen.calls = []
    sent = torch.arange(3.0).to("cuda")
    summed = (sent * 2).sum()
    assert (seen.uploads.total(), seen.bytes_sent, seen.waits.total()) == (1, 12, 0)
    assert seen.calls == [("mul", ((3,),)), ("sum", ((3,),))]
    assert summed.item() == 6
    assert seen.waits.total() == 1


def test_what_asks_the_device_for_a_size_waits(seen: Seen) -> None:
    numbers = torch.arange(3, device="cuda")
    torch.bincount(numbers, minlength=3)
    assert seen.waits.total() == 2
    numbers[numbers > 0] = numbers[numbers > 0] + 1
    torch.repeat_interleave(numbers, numbers)
    assert seen.waits.total() == 5
    torch.repeat_interleave(numbers, numbers, output_size=5)
    torch.nonzero_static(numbers > 0, size=2)
    torch.zeros(4, dtype=torch.int64, device="cuda").index_add_(0, numbers, numbers)
    assert seen.waits.total() == 5


def test_gradients_stay_on_the_device(seen: Seen) -> None:
    layer = torch.nn.Linear(3, 2).to("cuda")
    seen.clear()
    layer(torch.ones(4, 3, device="cuda")).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.device == torch.device("cuda", 0)
    assert seen.waits.total() == seen.uploads.total() == 0
    torch.testing.assert_close(layer.weight.grad.cpu(), torch.full((2, 3), 4.0))
