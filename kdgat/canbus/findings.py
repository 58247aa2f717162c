"""What a look at a recording has shown, whether anything can be judged in it, and what is to be done about it.

Refused is only what is clear: an honest log may be slow (a boat, a parked truck, a car that sleeps, one identifier
alone), short, or written in batches. What looks odd and may be right is a note.
"""

from __future__ import annotations

from math import log
from typing import Final

from pydantic import Field

from kdgat.base import Config
from kdgat.canbus.messages import UNITS_PER_S, ReadOptions

FEWEST_MESSAGES: Final = 100  # that anything but equal stamps is concluded from
FEWEST_EQUAL: Final = 50
_ALL: Final = 0.999  # a damaged line among many decides nothing
_MOST_PER_S: Final = 25_000  # messages on a bus of 1 Mbit/s: 47 bits each at least
_USUAL_S: Final = 0.05  # between messages of an identifier, in the middle of those of a car
_WORDS: Final = {"ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_NEVER_SO_SLOW_S: Final = 2000.0  # identifiers every half an hour, and no two messages close to each other
_SLOW_S: Final = 8.0
_NO_BURST_S: Final = 0.01  # control units send some messages at once; where none are that close, the unit is another
_FEWEST_IDENTIFIERS: Final = 5  # with other intervals each, that have to agree
_MANY_IDENTIFIERS: Final = 10
_WIDE_SPREAD: Final = 4.0
_PER_WHOLE_SECOND: Final = 4.0
_BACK_SHARE: Final = 0.2  # of differences, that are smaller than the one before
_NO_TREND: Final = 0.2
_LARGEST_DIFFERENCE_S: Final = 60.0
_SURE_DIGITS: Final = 30  # none of them a letter: of hexadecimal ones, once in a million files
_SURE_DIGITS_BEYOND: Final = 12  # where there are identifiers that 11 bits cannot hold, and 29 need not
_LARGEST_AS_READ: Final = 0x2047  # the decimal number 2047, read as a hexadecimal one
_TWICE, _SOME_TWICE = 0.9, 0.2
_FEWEST_FAR, _FAR_SHARE = 10, 0.002


class Findings(Config):
    """What a look at a recording has shown; without what may be judged where no habits were learned."""

    num_messages: int = 0
    num_identifiers: int = 0
    num_of_tool: int = Field(0, description="messages with stamp 0 behind others: sent by the tool itself")
    span_s: float = 0.0
    least_s: float = 0.0
    num_backward: int = Field(0, description="steps back in time")
    num_far_back: int = Field(0, description="of more than 1 s")
    num_far_ahead: int = Field(0, description="steps of more than 10 s ahead")
    num_stamps: int = Field(0, description="stamps that differ from the one before")
    whole_share: float = Field(0.0, description="share of stamps that are whole seconds")
    milli_share: float = Field(0.0, description="share of stamps that are whole milliseconds")
    trend: float = Field(0.0, description="correlation of stamps with their order")
    short_gap_s: float = Field(0.0, description="5 % of messages follow the one before no later")
    large_stamp_s: float = Field(0.0, description="99 % of stamps are smaller")
    num_timed_identifiers: int = Field(0, description="that have at least ten intervals")
    usual_interval_s: float = Field(0.0, description="median of their median intervals")
    interval_spread: float = Field(1.0, description="the slow ones' interval over the fast ones'")
    twice_share: float = Field(0.0, description="share of messages that come exactly twice within a millisecond")
    num_digits: int = Field(0, description="digits of identifiers that could be letters, and none is")
    num_beyond_11_bits: int = Field(0, description="identifiers beyond 11 bits")
    largest_identifier: int = 0
    unit_is_stated: bool = Field(False, description="the format states the unit of times")
    unit_is_said: bool = Field(False, description="a person has said the unit of times")
    base_is_stated: bool = Field(True, description="identifiers are no text that may be decimal")
    num_judged: int | None = Field(None, description="identifiers whose usual interval was known at some time")
    num_frequent: int | None = Field(None, description="identifiers that came often and long enough for one")

    def problem(self, options: ReadOptions | None = None) -> str:
        """State why nothing in the recording can be judged, and the fix; empty if there is no clear reason.

        Whoever says by `options` how identifiers are written is believed, and what unit the times have as far as a bus
        can carry so many messages.

        >>> Findings(num_messages=365, num_stamps=1).problem()
        'times are lost: all 365 messages have the same one; export the log again, with fractions of a second'
        """
        if self.num_messages >= FEWEST_EQUAL and self.num_stamps == 1:
            return f"times are lost: all {self.num_messages:,} messages have the same one; {_EXPORT}"
        if self.num_messages < FEWEST_MESSAGES:
            return ""
        options = options or ReadOptions()
        is_said = options.time_unit is not None or self.unit_is_said
        if not is_said and (problem := self._wrong_times()):
            return problem
        if self.num_messages > 1000 + _MOST_PER_S * self.span_s:
            fix = "another unit than was said (--time-unit)" if is_said else _EXPORT
            return (
                f"times are no seconds: {self.num_messages:,} messages within {self.span_s:.3g} s are more than a CAN "
                f"bus can carry; {fix}"
            )
        if options.identifiers is None and not self.base_is_stated and self._is_decimal():
            return (
                f"identifiers are decimal, as it seems: none of {self.num_identifiers} holds a letter; read them so by "
                "--ids decimal (or --ids hexadecimal if they are)"
            )
        return ""

    def notes(self) -> list[str]:
        """Say what is odd, and may be right, in a recording that can be used."""
        found = []
        if self.twice_share >= _TWICE:
            found.append("every message comes twice (echo of the interface): --drop-echo")
        elif self.twice_share >= _SOME_TWICE:
            found.append(
                f"{self.twice_share:.0%} of the messages are pairs of the same one (echo of the interface): --drop-echo"
            )
        if self.num_of_tool:
            found.append(f"{self.num_of_tool:,} messages have the time 0: the tool itself sent them, as it seems")
        if self.num_far_back >= max(_FEWEST_FAR, _FAR_SHARE * self.num_messages):
            found.append(
                f"the time steps back by more than a second {self.num_far_back:,} times: stamps of two clocks, or of "
                "two recordings in one; record each by itself"
            )
        if self.unit_is_stated or self.unit_is_said or self.num_messages < FEWEST_MESSAGES:
            pass
        elif self.whole_share >= _ALL and self.num_stamps > 1:
            found.append("all times are whole seconds: if they are milliseconds, say --time-unit ms")
        elif self._may_be_milliseconds():
            found.append("times look like milliseconds: if they are, say --time-unit ms")
        if self.num_judged is not None and self.num_frequent and 2 * self.num_judged < self.num_frequent:
            found.append(f"by their times {self.judged()}")
        return found

    def judged(self) -> str:
        """Say how many identifiers could be judged by their times."""
        return judged_text(self.num_judged or 0, self.num_frequent or 0)

    def _wrong_times(self) -> str:
        """State how the stamps are no times in seconds; empty unless it is clear."""
        if not self.unit_is_stated:
            if self._are_differences():
                fix = "log absolute times (candump -L)"
                if self.large_stamp_s < _LARGEST_DIFFERENCE_S:
                    fix = f"read them so by --time-unit differences, or {fix}"
                return f"times are differences from one message to the next, as it seems (they do not grow): {fix}"
            if unit := self._other_unit():
                return (
                    f"times are {_WORDS[unit]}, as it seems: read as seconds, identifiers come every "
                    f"{self.usual_interval_s:,.0f} s; say --time-unit {unit} (or --time-unit s if they are seconds)"
                )
        if self.whole_share >= _ALL and self.num_messages >= _PER_WHOLE_SECOND * self.num_stamps:
            per_stamp = self.num_messages / self.num_stamps
            return f"times are lost: they are whole seconds, with {per_stamp:,.0f} messages in each; {_EXPORT}"
        return ""

    def _are_differences(self) -> bool:
        return (
            self.num_backward >= _BACK_SHARE * self.num_messages
            and abs(self.trend) < _NO_TREND
            and self.least_s > -1.0
            and (self.large_stamp_s < _LARGEST_DIFFERENCE_S or self.whole_share >= _ALL)  # or of another unit
        )

    def _other_unit(self) -> str:
        """Return the unit in which identifiers come as they do on a bus, if it is clearly not the second."""
        interval, is_whole = self.usual_interval_s, self.whole_share >= _ALL
        has_bursts = self.short_gap_s < _NO_BURST_S and not is_whole
        if has_bursts or interval < _SLOW_S:
            return ""
        unit = min(_WORDS, key=lambda name: abs(log(interval / UNITS_PER_S[name] / _USUAL_S)))
        if interval >= _NEVER_SO_SLOW_S and (is_whole or self.short_gap_s >= _SLOW_S):
            return unit
        if self.num_timed_identifiers < _FEWEST_IDENTIFIERS:
            return ""
        if is_whole or self.milli_share >= _ALL:
            return unit
        is_wide = self.num_timed_identifiers >= _MANY_IDENTIFIERS and self.interval_spread >= _WIDE_SPREAD
        return unit if is_wide else ""

    def _may_be_milliseconds(self) -> bool:
        return self.usual_interval_s >= _SLOW_S and self.short_gap_s >= _NO_BURST_S and self.milli_share >= _ALL

    def _is_decimal(self) -> bool:
        """Return whether identifiers of a table have too many digits without a letter to be hexadecimal."""
        is_beyond = self.num_beyond_11_bits > 0 and self.largest_identifier <= _LARGEST_AS_READ
        return self.num_digits >= (_SURE_DIGITS_BEYOND if is_beyond else _SURE_DIGITS)


_EXPORT: Final = "export the log again, with fractions of a second"


def judged_text(num_judged: int, num_frequent: int) -> str:
    """Say how many identifiers could be judged.

    >>> judged_text(12, 51), judged_text(0, 18)
    ('12 of 51 identifiers could be judged', 'none of 18 identifiers could be judged')
    """
    noun = "identifier" if num_frequent == 1 else "identifiers"
    return f"{num_judged or 'none'} of {num_frequent} {noun} could be judged"
