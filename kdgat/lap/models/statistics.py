"""What the costs of one node's edges are like, as a fixed number of features that no order of the edges changes."""

import torch
from torch import Tensor

NUM_STATISTICS = 8


def list_statistics(costs: Tensor, present: Tensor) -> Tensor:
    """Return [n, NUM_STATISTICS] of normalised costs [n, R]: least, gap, mean, deviation, largest, entropy, two more.

    The two more are the means of exp(-4 c) and exp(-16 c): how many entries are about as good as the best. A node
    without edges has zeros.
    """
    count = present.sum(dim=1, keepdim=True).clamp(min=1)
    inside = costs.masked_fill(~present, 0.0)
    mean = inside.sum(dim=1, keepdim=True) / count
    deviation = (((costs - mean) ** 2).masked_fill(~present, 0.0).sum(dim=1, keepdim=True) / count).sqrt()
    far = torch.finfo(costs.dtype).max
    two = torch.topk(costs.masked_fill(~present, far), 2, dim=1, largest=False).values
    two = torch.where(two == far, inside.amax(dim=1, keepdim=True), two)
    least, gap = two[:, :1], two[:, 1:] - two[:, :1]
    above = (costs - least).masked_fill(~present, torch.inf)
    weights = torch.softmax(torch.where(present.any(dim=1, keepdim=True), -above, 0.0), dim=1)
    entropy = -torch.special.xlogy(weights, weights).sum(dim=1, keepdim=True)
    near = [torch.exp(-sharpness * above).sum(dim=1, keepdim=True) / count for sharpness in (4.0, 16.0)]
    features = torch.cat([least, gap, mean, deviation, inside.amax(dim=1, keepdim=True), entropy, *near], dim=1)
    return features * present.any(dim=1, keepdim=True)
