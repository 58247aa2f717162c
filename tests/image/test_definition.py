"""A definition as data refuses what could not be written, or would be read as something else."""

import pytest

from kdgat.image.definition import Copy, Definition, DefinitionError, Stage


def stage(**changes: object) -> Stage:
    fields: dict[str, object] = {"bootstrap": "localimage", "base": "base.sif", **changes}
    return Stage(**fields)  # type: ignore[arg-type]


def test_a_definition_is_written_as_apptainer_reads_it() -> None:
    build = stage(name="build", arguments={"V": "1"}, files=(Copy("a", "/a"),), sections={"post": "if true\n  x\n\ny"})
    runtime = stage(name="runtime", files=(Copy("/a", "/b", "build"),), labels={"one": "two three"})
    assert Definition((build, runtime), comment="Said first.").render() == (
        "# Said first.\n\n"
        "Bootstrap: localimage\nFrom: base.sif\nStage: build\n\n"
        "%arguments\n    V=1\n\n%files\n    a /a\n\n%post\n    if true\n      x\n\n    y\n\n"
        "Bootstrap: localimage\nFrom: base.sif\nStage: runtime\n\n"
        "%files from build\n    /a /b\n\n%labels\n    one two three\n"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"base": "two\nlines"}, "header's value"),
        ({"base": " x"}, "header's value"),
        ({"base": "x # y"}, "header's value"),
        ({"name": ""}, "header's value"),
        ({"arguments": {"a-b": "1"}}, "'a-b' is no name"),
        ({"arguments": {"A": "1\n2"}}, "one line"),
        ({"arguments": {"A": ""}}, "begins a comment"),
        ({"arguments": {"A": "1 # 2"}}, "begins a comment"),
        ({"labels": {"two words": "x"}}, "one word"),
        ({"labels": {"a": ""}}, "has no value"),
        ({"files": (Copy("a b", "/c"),)}, "%files: 'a b'"),
        ({"files": (Copy("a", "/c", "x"), Copy("a", "/c"), Copy("b", "/c", "x"))}, "together"),
        ({"sections": {"poost": "x"}}, "section %poost is unknown"),
        ({"sections": {"post": "echo <<E\n%test\nE"}}, "'%test' would begin a section"),
        ({"sections": {"post": "echo <<E\n  %test\nE"}}, "would begin a section"),
        ({"sections": {"post": "\nx"}}, "empty line"),
        ({"sections": {"post": "  x\n  y"}}, "indented as a whole"),
        ({"sections": {"post": "x  "}}, "ends with blanks"),
    ],
)
def test_a_stage_that_cannot_be_written_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(DefinitionError, match=said.replace("(", r"\(")):
        stage(**changes)


def test_a_variable_must_be_declared_in_the_stage_that_uses_it() -> None:
    build = stage(name="build", arguments={"V": "1"}, sections={"post": "echo {{ V }}"})
    runtime = stage(name="runtime", sections={"post": "echo {{ V }}"})
    with pytest.raises(DefinitionError, match=r"\{\{ V \}\} is not declared in stage 'runtime'"):
        Definition((build, runtime))


def test_files_come_from_earlier_stages_alone() -> None:
    taking = stage(name="b", files=(Copy("/a", "/a", "c"),))
    with pytest.raises(DefinitionError, match="%files from c: no earlier stage"):
        Definition((stage(name="a"), taking, stage(name="c")))
    with pytest.raises(DefinitionError, match="two stages are called 'a'"):
        Definition((stage(name="a"), stage(name="a")))
    with pytest.raises(DefinitionError, match="at least one stage"):
        Definition(())


def test_a_comment_that_ends_in_an_empty_line_keeps_it() -> None:
    definition = Definition((Stage(bootstrap="localimage", base="base.sif"),), comment="Two\n")
    assert definition.render().startswith("# Two\n#\n")
