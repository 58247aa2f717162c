"""What a stage notes of its work counts once, and all of it."""

from kdgat.stage import Work


def test_processes_of_several_kinds_are_there_at_a_time_and_those_of_one_kind_count_at_their_peak() -> None:
    work = Work()
    for kind, mib in (("ranks", 900), ("loggers", 400), ("ranks", 700)):
        work.note_others(kind, mib)
    assert work.ranks_mib == 1300
    assert "_others" not in work.model_dump()
