"""Words that label a message as benign or as attack, and what is said of a column with other words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.base.text import list_some
from kdgat.canbus.messages import RecordingError

BENIGN_WORDS: Final = (
    *("0", "r", "0.0", "normal", "benign", "false", "no", "n", "regular", "attack-free", "attack_free", "attack free"),
    *("attackfree", "no attack", "no_attack", "legitimate", "legit", "clean", "genuine", "non-attack", "none"),
)
"""Labels of messages that belong on the bus, compared without case; `r` is HCRL's, of regular."""
ATTACK_WORDS: Final = (
    *("1", "t", "1.0", "attack", "true", "yes", "y", "injected", "malicious", "attacked", "attacks", "injection"),
    *("anomaly", "anomalous", "abnormal", "intrusion", "malign"),
)
"""Labels of injected messages; `t` is HCRL's."""
MOST_SHOWN: Final = 8  # words of a column that a refusal lists
_LEAST_REPEATED: Final = 2  # a word that stands there once is damage
_LOWER: Final = 0x20  # bit that makes letters small, as compiled code compares
_UNKNOWN: Final = -1


class LabelWords(NamedTuple):
    """Words as compiled code looks them up: their bytes, small letters, where each begins and ends, what it means."""

    text: NDArray[np.uint8]
    bounds: NDArray[np.int64]  # [W + 1]
    values: NDArray[np.int64]  # [W] 0 or 1
    other: int  # what all other words mean; -1: they are no labels


@cache
def label_words(attack_labels: tuple[str, ...] = ()) -> LabelWords:
    """Return the words that are known; with `attack_labels` these are the attacks, and every other word is benign."""
    meanings = (
        dict.fromkeys(map(_folded, attack_labels), 1)
        if attack_labels
        else {_folded(word): value for value, words in enumerate((BENIGN_WORDS, ATTACK_WORDS)) for word in words}
    )
    return LabelWords(
        np.array([byte for word in meanings for byte in word], np.uint8),
        np.cumsum([0, *map(len, meanings)]),
        np.array(list(meanings.values()), np.int64),
        0 if attack_labels else _UNKNOWN,
    )


def _folded(word: str) -> bytes:
    return bytes(byte | _LOWER for byte in word.strip().encode())


def value_of(word: str, attack_labels: tuple[str, ...] = ()) -> int:
    """Return 1 for the label of an attack, 0 for a benign one, -1 for a word that is none.

    >>> [value_of(word) for word in ("Normal", "T", "DoS")], value_of("DoS", ("dos", "Fuzzy"))
    ([0, 1, -1], 1)
    """
    word = word.strip().lower()
    if attack_labels:
        return int(word in (one.strip().lower() for one in attack_labels)) if word else _UNKNOWN
    return 0 if word in BENIGN_WORDS else 1 if word in ATTACK_WORDS else _UNKNOWN


def count_words(lines: Iterable[bytes], separator: str, column: int) -> Counter[str]:
    """Count what stands in one column of some lines; -1 is the last one that is not empty."""
    counts = Counter[str]()
    for line in lines:
        cells = [cell.strip(' "\r\n\t') for cell in line.decode("latin-1").split(separator)]
        if column < 0:
            cells = [cell for cell in cells if cell]
        if column < len(cells) and cells:
            counts[cells[column]] += 1
    return counts


def refuse_unknown_words(path: Path, words: Counter[str], fix: str | None = None) -> None:
    """Raise RecordingError where words that are no known labels come again and again: they are no damage.

    Dropped as bad rows they would take the attacks with them. Of a table options say which are attacks.
    """
    repeated = [word for word, count in words.most_common() if count >= _LEAST_REPEATED and _is_word(word)]
    if repeated:
        shown = list_some([f"{word} ({words[word]} rows)" for word in repeated], MOST_SHOWN)
        fix = fix or (
            f"say which words are attacks, all others are benign: `kdgat data import --attack-labels "
            f"{_listed(repeated)}`; or, if another column holds the labels, `--label-column NAME`"
        )
        raise RecordingError(
            path, f"its labels are words that do not say whether a message is an attack: {shown}; {fix}"
        )


def _is_word(text: str) -> bool:
    return text[:1].isalpha() or text.isdecimal()


def _listed(words: Sequence[str]) -> str:
    listed = ",".join(words[:MOST_SHOWN])
    return f"'{listed}'" if any(not (one.isalnum() or one in ",-_.") for one in listed) else listed
