"""What of RAPIDS computes here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kdgat.can.capabilities import find_capabilities

if TYPE_CHECKING:
    from kdgat.gpu.check import Rows


def compute(device: str, rows: Rows) -> None:
    """Add what each package says, and a sparse product of torch, whose library RAPIDS may bring in another version."""
    for one in find_capabilities():
        rows.add(what=one.name, usable=one.usable, version=one.version, detail=one.detail)
    dense = torch.eye(8, device=device)
    product = torch.sparse.mm(dense.to_sparse_csr(), 2 * dense)
    rows.add(what="torch.sparse.mm", usable=bool(torch.equal(product, 2 * dense)), version=torch.__version__)
