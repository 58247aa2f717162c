"""Costs of which most are one constant, the background: 1 - IoU of boxes, gated distances. The others are searched.

One pass over the matrix lists the entries below the background. A line of the smaller side takes one of its entries or
the background, whichever is better in sum; lines that took the background share out what is left, at that price. So
searches stay within groups of boxes that meet, and cost what these hold, whatever the size of the matrix. Duals are
u_i <= background and v_j <= 0, so they are feasible on the background by themselves; the proof looks at all entries.
"""

import numpy as np

from kdgat.assignment.certificate import is_proved
from kdgat.assignment.rows import BITS, EXPONENT, last_unlike, lowest_bit, unlike
from kdgat.assignment.search import flip, pop, rise
from kdgat.assignment.small import (
    INFEASIBLE,
    LARGEST_BID,
    MINUS,
    PLUS,
    SOLVED,
    UNPROVED,
    UNUSABLE,
    pack,
    write_answer,
)
from kdgat.base.machine_code import compiled, njit

OTHER = INFEASIBLE  # the costs have no background, or too few lines that may share it
SAMPLE, SHARE = 64, 0.6  # entries looked at to find a background, and how many of them it has to be
LARGEST_SHARE = 0.15  # of the entries that may differ from it
FREE, AT_BACKGROUND = -1, -2
ROUNDS, BIDS_PER_LINE = 2, 2


@njit
def background_of(cost, mask):  # type: ignore[no-untyped-def]
    """Return whether one value dominates a sample of the entries, and that value (Boyer and Moore's vote)."""
    flat, forbidden = cost.reshape(-1), mask.reshape(-1)
    step = max(1, flat.size // SAMPLE)
    step += step % 2 == 0  # not always the same columns
    value, votes = flat[0], 0
    share = 0
    for is_count in (False, True):
        for k in range(SAMPLE):
            place = k * step % flat.size
            if forbidden.size != 0 and forbidden[place]:
                continue
            entry = flat[place]
            if is_count:
                share += entry == value
                continue
            if votes == 0:
                value = entry
            votes += 1 if entry == value else -1
    return share >= SHARE * SAMPLE and abs(value) < np.inf, value


@njit
def list_entries(cost, mask, sign, forbids, value):  # type: ignore[no-untyped-def]
    """List what costs less than the background, by rows: return (state, start of rows, columns, costs, others).

    `others` counts the entries that cost more or are forbidden, so that they cannot be had at the background's price.
    """
    n, m = cost.shape
    patterns = cost.view(np.int64)
    limit = int(LARGEST_SHARE * n * m)
    start = np.empty(n + 1, np.int64)
    columns, costs = np.empty(16 * n + m, np.int32), np.empty(16 * n + m)
    found = others = 0
    for i in range(n):
        start[i] = found
        if found + m > costs.size:
            columns, costs = grown(columns, found + m), grown(costs, found + m)
        row, pattern = cost[i], patterns[i]
        forbidden = mask[i] if mask.shape[0] != 0 else mask.reshape(-1)
        numbers = (sign, forbids, sign * value)
        usable = True
        for block in range(0, m, BITS):
            differs = unlike(row, block, value) if block + BITS <= m else last_unlike(row, block, value)
            if forbidden.size != 0:
                differs |= places_set(forbidden, block)
            if differs != 0:
                found, others, fine = take(
                    differs, block, row, pattern, forbidden, numbers, columns, costs, found, others
                )
                usable &= fine
        if not usable:
            return UNUSABLE, start, columns, costs, 0
        if found + others > limit:
            return OTHER, start, columns, costs, 0
    start[n] = found
    return SOLVED, start, columns, costs, others


@njit
def places_set(forbidden, block):  # type: ignore[no-untyped-def]
    """Return as bits which of the BITS entries from `block` on are forbidden."""
    bits = 0
    for k in range(min(BITS, forbidden.size - block)):
        bits |= int(forbidden[block + k] != 0) << k
    return bits


@njit
def take(differs, block, row, pattern, forbidden, numbers, columns, costs, found, others):  # type: ignore[no-untyped-def]
    """List those of the entries named by bits that cost less; return (found, others, whether all can be used).

    `numbers` are the sign, the pattern of the infinity that forbids a pair, or 0, and the background.
    """
    sign, forbids, background = numbers
    usable = True
    while differs != 0:
        j = block + lowest_bit(differs)
        differs &= differs - 1
        entry = sign * row[j]
        columns[found], costs[found] = j, entry
        is_allowed = forbidden.size == 0 or forbidden[j] == 0
        is_less = is_allowed and entry < background
        found += is_less
        others += not is_less and not (is_allowed and entry == background)
        is_special = pattern[j] & EXPONENT == EXPONENT
        usable &= not (is_allowed and is_special) or (forbids != 0 and pattern[j] == forbids)
    return found, others, usable


@njit
def grown(values, size):  # type: ignore[no-untyped-def]
    """Return an array of `size` entries or twice the length that begins with `values`."""
    larger = np.empty(max(size, 2 * values.size), values.dtype)
    larger[: values.size] = values
    return larger


@njit
def by_columns(start, columns, costs, num_columns):  # type: ignore[no-untyped-def]
    """Return the same lists by columns."""
    place = np.zeros(num_columns + 2, np.int64)
    for e in range(start[-1]):
        place[columns[e] + 2] += 1
    for j in range(num_columns):
        place[j + 2] += place[j + 1]
    rows, prices = np.empty(start[-1], np.int32), np.empty(start[-1])
    for i in range(start.size - 1):
        for e in range(start[i], start[i + 1]):
            at = place[columns[e] + 1]
            rows[at], prices[at] = i, costs[e]
            place[columns[e] + 1] += 1
    return place[:-1], rows, prices


@njit
def bid_or_rest(start, targets, prices, background, u, v, target_of, line_of):  # type: ignore[no-untyped-def]
    """Let lines bid for their targets, or rest at the background; return (those left, how many, entries looked at).

    The first round is the greedy one; `u` becomes each line's price, tight or not.
    """
    num_lines = start.size - 1
    free = np.arange(num_lines)
    num_free = num_lines
    looked_at = 0
    total = 0.0
    for line in range(num_lines):
        total += abs(u[line])
    max_raise = LARGEST_BID * total / num_lines if total > 0.0 else np.inf
    for _ in range(ROUNDS):
        waiting, num_free = num_free, 0
        k = bids = 0
        while k < waiting:
            line = free[k]
            k += 1
            first, second, best = background, background, -1
            for e in range(start[line], start[line + 1]):
                value = prices[e] - v[targets[e]]
                if value < first:
                    second = first
                    first = value
                    best = targets[e]
                elif value < second:
                    second = value
            looked_at += start[line + 1] - start[line]
            bids += 1
            if best < 0:
                u[line] = background
                target_of[line] = AT_BACKGROUND
                continue
            if not second - first <= max_raise:
                u[line] = first
                free[num_free] = line
                num_free += 1
                continue
            other = line_of[best]
            if other >= 0 and first == second:
                u[line] = first
                free[num_free] = line
                num_free += 1
                continue
            u[line] = second
            v[best] -= second - first
            line_of[best] = line
            target_of[line] = best
            if other >= 0:
                target_of[other] = FREE
                if bids < BIDS_PER_LINE * num_lines:
                    k -= 1
                    free[k] = other
                else:
                    free[num_free] = other
                    num_free += 1
    return free, num_free, looked_at


@njit
def augment_lists(start, targets, prices, background, u, v, target_of, line_of, free, num_free):  # type: ignore[no-untyped-def]
    """Give every free line a target or the background, by Dijkstra's search; return the entries looked at.

    The loop is its own: with `reach`, `push` and `settle` of `search` a solve took 6 % longer.
    """
    num_targets = v.size
    distance = np.full(num_targets, np.inf)
    predecessor, reached, scanned = (
        np.empty(num_targets, np.int32),
        np.empty(num_targets, np.int32),
        np.empty(num_targets, np.int32),
    )
    keys, nodes = np.empty(num_targets + 1), np.empty(num_targets + 1, np.int32)
    place = np.full(num_targets, -1, np.int32)
    looked_at = 0
    for k in range(num_free):
        origin = free[k]
        price = background
        for e in range(start[origin], start[origin + 1]):
            price = min(price, prices[e] - v[targets[e]])
        u[origin] = price
        size = num_reached = num_scanned = 0
        best, end, rests = np.inf, -1, -1
        line, here = origin, 0.0
        while True:
            offset = here - u[line]
            value = max(background + offset, here)
            if value < best:
                best, end, rests = value, -1, line
            for e in range(start[line], start[line + 1]):
                target = targets[e]
                value = max(prices[e] - v[target] + offset, here)
                if value < best and value < distance[target]:
                    if distance[target] == np.inf:
                        reached[num_reached] = target
                        num_reached += 1
                    distance[target] = value
                    predecessor[target] = line
                    if line_of[target] < 0:
                        best, end, rests = value, target, -1
                    else:
                        position = place[target]
                        if position < 0:
                            position = size
                            size += 1
                        rise(keys, nodes, place, position, value, target)
            looked_at += start[line + 1] - start[line]
            if size == 0 or keys[0] >= best:
                break
            here = keys[0]
            scanned[num_scanned] = nodes[0]
            num_scanned += 1
            line = line_of[nodes[0]]
            size = pop(keys, nodes, place, size)
        u[origin] += best
        for s in range(num_scanned):
            target = scanned[s]
            u[line_of[target]] += best - distance[target]
            v[target] -= best - distance[target]
        for s in range(size):
            place[nodes[s]] = -1
        for s in range(num_reached):
            distance[reached[s]] = np.inf
        if rests >= 0:
            end = target_of[rests]
            target_of[rests] = AT_BACKGROUND
            u[rests] = background
            if rests == origin:
                continue
        flip(origin, end, predecessor, target_of, line_of)
    return looked_at


@njit
def share_out(cost, mask, background, sign, others, target_of, line_of):  # type: ignore[no-untyped-def]
    """Give lines at the background what is left, at that price; return whether that was possible in one go."""
    left = np.flatnonzero(line_of < 0)
    begin = 0
    for line in range(target_of.size):
        if target_of[line] >= 0:
            continue
        found = -1
        for k in range(begin, left.size):
            target = left[k]
            i, j = (target, line) if cost.shape[0] > cost.shape[1] else (line, target)
            if others == 0 or (sign * cost[i, j] == background and (mask.shape[0] == 0 or mask[i, j] == 0)):
                found = k
                break
        if found < 0:
            return False
        target_of[line] = left[found]
        line_of[left[found]] = line
        left[found] = left[begin]
        begin += 1
    return True


@compiled
def solve_listed(cost, mask, maximize, may_forbid, packed):  # type: ignore[no-untyped-def]
    """Solve a matrix that has a background; arguments and result are those of `kdgat.assignment.small.solve_one`."""
    num_rows, num_columns = cost.shape
    n, m = min(num_rows, num_columns), max(num_rows, num_columns)
    has_one, value = background_of(cost, mask)
    if not has_one:
        return OTHER
    sign = -1.0 if maximize else 1.0
    forbids = (MINUS if maximize else PLUS) if may_forbid else 0
    state, start, targets, prices, others = list_entries(cost, mask, sign, forbids, value)
    if state != SOLVED:
        return state
    background = sign * value
    if num_rows > num_columns:
        start, targets, prices = by_columns(start, targets, prices, n)
    u, v = np.full(n, background), np.zeros(m)
    seed_bound = 0.0
    for line in range(n):
        for e in range(start[line], start[line + 1]):
            u[line] = min(u[line], prices[e])
        seed_bound += u[line]
    target_of, line_of = np.full(n, FREE, np.int64), np.full(m, FREE, np.int64)
    free, num_free, looked_at = bid_or_rest(start, targets, prices, background, u, v, target_of, line_of)
    looked_at += augment_lists(start, targets, prices, background, u, v, target_of, line_of, free, num_free)
    for line in range(n):  # exactly what their entries say
        for e in range(start[line], start[line + 1]):
            if targets[e] == target_of[line]:
                u[line] = prices[e] - v[targets[e]]
    if not share_out(cost, mask, background, sign, others, target_of, line_of):
        return OTHER
    taken = np.empty(m, np.int64)
    good, total, bound = is_proved(cost, mask, num_rows, num_columns, sign, target_of, u, v, taken, np.empty(2 * n))
    if not good:
        return UNPROVED
    duals, column_of = packed[2 * n :].view(np.float64), np.empty(num_rows, np.int64)
    mine, others_duals = duals[:num_rows], duals[num_rows : num_rows + num_columns]
    write_answer(num_rows, num_columns, sign, target_of, line_of, u, v, column_of, mine, others_duals)
    result = (SOLVED, sign * total, sign * bound, sign * seed_bound, n - num_free, num_free, looked_at)
    pack(packed, num_rows, num_columns, column_of, result)
    return SOLVED
