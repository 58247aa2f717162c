"""Kernels of attention over edges for NVIDIA GPUs, in Triton: import this only where one is launched.

One program per node, forwards and backwards, with all heads and channels of the node as one tile: 8 x 64 for 8 heads
of 48 channels. A graph of a window has some 27 nodes and 55 edges, so a batch has thousands of programs of about two
edges each. That fills a GPU without dividing a node's work; a program for each head would read indices and scores eight
times, and one for several nodes would wait for the node with the most edges.

A program walks through its edges in their order and adds in registers. Nothing is added to memory that another program
writes (no atomics), so the order of every sum is that of the edges: two runs are equal bit for bit. Sums are in single
precision, whatever the type of what is read. There is no matrix product (`tl.dot`): a row has one use per edge, and
Volta has no such instruction for single precision.

Rows may be longer than what is read of them (`..._stride`), which takes columns of a wider product without a copy.
"""
# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl


@triton.jit
def _score(of_source, at_target, of_edge, source, edge, source_stride, edge_stride, head, has_head):
    """Return the scores [H] of an edge before leaky ReLU, in single precision."""
    score = tl.load(of_source + source * source_stride + head, mask=has_head, other=0.0).to(tl.float32) + at_target
    if of_edge is not None:
        score += tl.load(of_edge + edge * edge_stride + head, mask=has_head, other=0.0).to(tl.float32)
    return score


@triton.jit
def _leaky_relu(score, slope):
    """Return leaky ReLU of scores."""
    return tl.where(score > 0, score, score * slope)


@triton.jit
def attend_forward(
    values,
    of_source,
    of_target,
    of_edge,
    source,
    ptr,
    output,
    largest,
    total,
    values_stride,
    source_stride,
    target_stride,
    edge_stride,
    slope,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    CHANNEL_TILE: tl.constexpr,
):
    """Write the output row of a node, and the largest score and the sum of the softmax of each of its heads.

    The softmax is taken in one walk: where a score exceeds those before, what was summed up to there is scaled down.
    """
    node = tl.program_id(0).to(tl.int64)
    head, channel = tl.arange(0, HEAD_TILE), tl.arange(0, CHANNEL_TILE)
    has_head = head < HEADS
    inside = has_head[:, None] & (channel < CHANNELS)[None, :]
    place = head[:, None] * CHANNELS + channel[None, :]
    at_target = tl.load(of_target + node * target_stride + head, mask=has_head, other=0.0).to(tl.float32)
    summed = tl.zeros((HEAD_TILE, CHANNEL_TILE), tl.float32)
    weights = tl.zeros((HEAD_TILE,), tl.float32)
    maximum = tl.full((HEAD_TILE,), -1e30, tl.float32)
    begin, end = tl.load(ptr + node), tl.load(ptr + node + 1)
    for edge in range(begin, end):
        other = tl.load(source + edge).to(tl.int64)
        row = tl.load(values + other * values_stride + place, mask=inside, other=0.0).to(tl.float32)
        score = _score(of_source, at_target, of_edge, other, edge, source_stride, edge_stride, head, has_head)
        score = _leaky_relu(score, slope)
        raised = tl.maximum(maximum, score)
        weight, kept = tl.exp(score - raised), tl.exp(maximum - raised)
        summed = summed * kept[:, None] + weight[:, None] * row
        weights = weights * kept + weight
        maximum = raised
    # By the number of edges, and not by a positive sum: NaN has to come through.
    weights = tl.where(end > begin, weights, 1.0)
    tl.store(output + node * HEADS * CHANNELS + place, summed / weights[:, None], mask=inside)
    tl.store(largest + node * HEADS + head, maximum, mask=has_head)
    tl.store(total + node * HEADS + head, weights, mask=has_head)


@triton.jit
def attend_backward_by_target(
    values,
    of_source,
    of_target,
    of_edge,
    source,
    ptr,
    largest,
    total,
    gradient,
    gradient_of_target,
    gradient_of_score,
    attention,
    values_stride,
    source_stride,
    target_stride,
    edge_stride,
    slope,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    CHANNEL_TILE: tl.constexpr,
):
    """Write the gradient of what a node adds to the scores of the edges into it, and theirs with their attention.

    The gradient of a softmax needs the mean over all edges first: a second walk computes the products again, from rows
    that are in the cache. That is less to read than the output of the forward pass, which so need not be kept.
    """
    node = tl.program_id(0).to(tl.int64)
    head, channel = tl.arange(0, HEAD_TILE), tl.arange(0, CHANNEL_TILE)
    has_head = head < HEADS
    inside = has_head[:, None] & (channel < CHANNELS)[None, :]
    place = head[:, None] * CHANNELS + channel[None, :]
    at_target = tl.load(of_target + node * target_stride + head, mask=has_head, other=0.0).to(tl.float32)
    maximum = tl.load(largest + node * HEADS + head, mask=has_head, other=0.0)
    weights = tl.load(total + node * HEADS + head, mask=has_head, other=1.0)
    of_output = tl.load(gradient + node * HEADS * CHANNELS + place, mask=inside, other=0.0).to(tl.float32)
    begin, end = tl.load(ptr + node), tl.load(ptr + node + 1)
    mean = tl.zeros((HEAD_TILE,), tl.float32)
    for edge in range(begin, end):
        other = tl.load(source + edge).to(tl.int64)
        row = tl.load(values + other * values_stride + place, mask=inside, other=0.0).to(tl.float32)
        score = _score(of_source, at_target, of_edge, other, edge, source_stride, edge_stride, head, has_head)
        weight = tl.exp(_leaky_relu(score, slope) - maximum) / weights
        mean += weight * tl.sum(of_output * row, axis=1)
    summed = tl.zeros((HEAD_TILE,), tl.float32)
    for edge in range(begin, end):
        other = tl.load(source + edge).to(tl.int64)
        row = tl.load(values + other * values_stride + place, mask=inside, other=0.0).to(tl.float32)
        score = _score(of_source, at_target, of_edge, other, edge, source_stride, edge_stride, head, has_head)
        weight = tl.exp(_leaky_relu(score, slope) - maximum) / weights
        of_score = weight * (tl.sum(of_output * row, axis=1) - mean) * tl.where(score > 0, 1.0, slope)
        tl.store(attention + edge * HEADS + head, weight, mask=has_head)
        tl.store(gradient_of_score + edge * HEADS + head, of_score, mask=has_head)
        summed += of_score
    tl.store(gradient_of_target + node * HEADS + head, summed, mask=has_head)


@triton.jit
def attend_backward_by_source(
    gradient,
    gradient_of_score,
    attention,
    target,
    by_source,
    source_ptr,
    gradient_of_values,
    gradient_of_source,
    HEADS: tl.constexpr,
    CHANNELS: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    CHANNEL_TILE: tl.constexpr,
):
    """Write the gradients of a node's values, and of what it adds to the scores of the edges out of it."""
    node = tl.program_id(0).to(tl.int64)
    head, channel = tl.arange(0, HEAD_TILE), tl.arange(0, CHANNEL_TILE)
    has_head = head < HEADS
    inside = has_head[:, None] & (channel < CHANNELS)[None, :]
    place = head[:, None] * CHANNELS + channel[None, :]
    of_values = tl.zeros((HEAD_TILE, CHANNEL_TILE), tl.float32)
    of_source = tl.zeros((HEAD_TILE,), tl.float32)
    for turn in range(tl.load(source_ptr + node), tl.load(source_ptr + node + 1)):
        edge = tl.load(by_source + turn).to(tl.int64)
        other = tl.load(target + edge).to(tl.int64)
        weight = tl.load(attention + edge * HEADS + head, mask=has_head, other=0.0)
        row = tl.load(gradient + other * HEADS * CHANNELS + place, mask=inside, other=0.0).to(tl.float32)
        of_values += weight[:, None] * row
        of_source += tl.load(gradient_of_score + edge * HEADS + head, mask=has_head, other=0.0)
    tl.store(gradient_of_values + node * HEADS * CHANNELS + place, of_values, mask=inside)
    tl.store(gradient_of_source + node * HEADS + head, of_source, mask=has_head)


@triton.jit
def say_ready(answer):
    """Write a one: whether anything can be compiled and launched here."""
    tl.store(answer, 1.0)
