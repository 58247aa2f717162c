"""What a module keeps beside weights and buffers: counts, factors, sums of metrics, generators of random numbers."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from lightning import LightningModule
from lightning.fabric.utilities import move_data_to_device
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

_OF_TORCH: Final = frozenset(vars(nn.Module())) | frozenset(vars(LightningModule()))
_PLAIN: Final = (bool, int, float, str, bytes, type(None))
STATE, VALUE = "state", "value"
_UNKNOWN: Final = object()


class Attributes:
    """Attributes of a module and its parts that training changes, so that a resumed one goes on with the same ones.

    Numbers, texts, tensors, arrays, lists and dictionaries of them, generators of random numbers, buffers that are not
    persistent, and whatever has `state_dict` and `load_state_dict`. What nobody has changed since the module was made
    is left alone: a path or a device belongs to one attempt.
    """

    def __init__(self, module: nn.Module) -> None:
        """Look at a module as it was made."""
        self._module = module
        self._as_made = self._marks()

    def state_dict(self, *, of_all: bool = False) -> dict[str, dict[str, Any]]:
        """Return what has ever been seen changed, or all, by attribute, copied."""
        found = {}
        for name, mark in self._marks().items():
            if of_all or name not in self._as_made or self._as_made[name] != mark:
                self._as_made.pop(name, None)
                owner, attribute = self._place(name)
                value = getattr(owner, attribute)
                state = _state_of(value)
                found[name] = {VALUE: _copied(value)} if state is None else {STATE: _copied(state)}
        return found

    def changed_values(self) -> dict[str, Any]:
        """Return numbers and texts that have ever been seen changed: what a file of weights can hold beside them."""
        values = {name: saved[VALUE] for name, saved in self.state_dict().items() if VALUE in saved}
        return {name: value for name, value in values.items() if isinstance(value, bool | int | float | str)}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]], device: torch.device) -> None:
        """Put attributes back, tensors on a device."""
        for name, saved in state.items():
            owner, attribute = self._place(name)
            if STATE in saved:
                _load_state(getattr(owner, attribute), saved[STATE])
            else:
                setattr(owner, attribute, move_data_to_device(saved[VALUE], device))

    def _place(self, name: str) -> tuple[nn.Module, str]:
        path, _, attribute = name.rpartition(".")
        return self._module.get_submodule(path), attribute

    def _marks(self) -> dict[str, Any]:
        """Return what tells each attribute's value from another; those that nobody can keep are left out."""
        found = {}
        for path, part in self._module.named_modules():
            buffers = {name: part._buffers[name] for name in part._non_persistent_buffers_set}
            for attribute, value in {**vars(part), **buffers}.items():
                if attribute not in _OF_TORCH and (mark := _mark(value)) is not _UNKNOWN:
                    found[f"{path}.{attribute}" if path else attribute] = mark
        return found


class _Version:
    """A tensor as it is now: another one, and one that was changed in place, is not equal."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.version = tensor, None if tensor.is_inference() else tensor._version

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, _Version) and self.tensor is other.tensor
        return same and self.version is not None and self.version == other.version  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]


def _mark(value: Any) -> Any:
    """Return something equal only for an equal value; `_UNKNOWN` if a checkpoint cannot hold it."""
    if type(value) in _PLAIN or isinstance(value, np.generic):
        return type(value), repr(value)  # NaN is not equal to itself
    if isinstance(value, Tensor):
        return _Version(value)
    if isinstance(value, np.ndarray):
        return (
            _UNKNOWN if value.dtype == object else (value.dtype, value.shape, hashlib.sha256(value.tobytes()).digest())
        )
    if type(value) is dict:
        marks = [(key, _mark(item)) for key, item in value.items()]
    elif type(value) in (list, tuple):
        marks = [(place, _mark(item)) for place, item in enumerate(value)]
    elif (state := _state_of(value)) is not None:
        return _mark(state)
    else:
        return _UNKNOWN
    return _UNKNOWN if any(mark is _UNKNOWN for _, mark in marks) else (type(value), marks)


def _state_of(value: Any) -> Any:
    """Return the state of an object that has one; None if it has none."""
    if isinstance(value, nn.Module):
        return None  # in the module's own state
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, random.Random):
        return value.getstate()
    if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
        return value.state_dict()
    return None


def _load_state(value: Any, state: Any) -> None:
    if isinstance(value, torch.Generator):
        value.set_state(state)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = state
    elif isinstance(value, random.Random):
        value.setstate(state)
    else:
        value.load_state_dict(state)


def _copied(content: Any) -> Any:
    return tree_map_only((Tensor, np.ndarray), _copy, content)


def _copy(one: Tensor | NDArray[Any]) -> Any:
    return one.detach().clone() if isinstance(one, Tensor) else one.copy()
