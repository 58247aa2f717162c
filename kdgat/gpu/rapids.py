"""What of RAPIDS computes here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kdgat.can.capabilities import CUDA, NOT_INSTALLED, find_capabilities

if TYPE_CHECKING:
    from kdgat.gpu.check import Rows


def compute(device: str, rows: Rows) -> None:
    """Add what each package says, and a sparse product of torch, whose library RAPIDS may bring in another version.

    Raises:
        RuntimeError: naming what is installed and does not compute.
    """
    found = find_capabilities()
    for one in found:
        rows.add(what=one.name, usable=one.usable, version=one.version, detail=one.detail)
    dense = torch.eye(8, device=device)
    product = torch.sparse.mm(dense.to_sparse_csr(), 2 * dense)
    is_right = bool(torch.equal(product, 2 * dense))
    rows.add(what="torch.sparse.mm", usable=is_right, version=torch.__version__)
    installed = [one for one in found if one.name != CUDA and one.detail != NOT_INSTALLED]
    failed = [f"{one.name}: {one.detail}" for one in installed if not one.usable]
    if failed or not is_right:
        raise RuntimeError("; ".join(failed) or "torch.sparse.mm: a product with the identity is another matrix")
