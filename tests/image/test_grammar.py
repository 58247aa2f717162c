"""The strict reader: what was written is read again, and every mistake is refused with its line."""

import contextlib
import shutil
import subprocess
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdgat.image.apptainer import command_environment
from kdgat.image.build import Builder, build_environment, work_folder
from kdgat.image.checkout import find_checkout
from kdgat.image.definition import TEXT_SECTIONS, Copy, Definition, DefinitionError, Stage
from kdgat.image.grammar import read_definition
from kdgat.image.recipe import VARIANTS, define
from tests.image.built import tiny_image

HEAD = "Bootstrap: localimage\nFrom: base.sif\n"
NAMES = st.text("abXY_", min_size=1, max_size=6)
WORDS = st.text("aZ09/:.@=+-", min_size=1, max_size=6)
VALUES = st.lists(WORDS, min_size=1, max_size=3).map(" ".join)
PATHS = st.text("aZ09/._*-", min_size=1, max_size=8)
# All that a shell's line may hold, but no `%` in front, and no template variable.
LINES = st.builds(
    lambda indent, text: (" " * indent + text.lstrip(" %")).rstrip(),
    st.integers(0, 3),
    st.text("aZ09 #$%\"'\\;|&<>(){}=-é", max_size=20).filter(lambda text: "{{" not in text),
)


@st.composite
def texts(draw: st.DrawFn) -> str:
    lines = ["first", *draw(st.lists(LINES, max_size=4))]
    while not lines[-1]:
        lines.pop()
    return "\n".join(lines)


@st.composite
def definitions(draw: st.DrawFn) -> Definition:
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    stages = []
    for number, name in enumerate(names):
        arguments = draw(st.dictionaries(NAMES, VALUES, max_size=3))
        used = "".join(f" {{{{ {variable} }}}}" for variable in arguments)
        sections = draw(st.dictionaries(st.sampled_from(TEXT_SECTIONS), texts(), max_size=4))
        origins = draw(st.lists(st.sampled_from([None, *names[:number]]), unique=True, max_size=2))
        files = [Copy(draw(PATHS), draw(PATHS), origin) for origin in origins for _ in range(draw(st.integers(1, 2)))]
        stages.append(
            Stage(
                bootstrap=draw(st.sampled_from(["localimage", "docker"])),
                base=draw(VALUES) + used,
                name=name,
                arguments=arguments,
                files=tuple(files),
                sections=sections,
                labels=draw(st.dictionaries(NAMES, VALUES, max_size=3)),
            )
        )
    return Definition(tuple(stages), comment=draw(st.sampled_from(["", "Said first.", "Two\n\nparagraphs."])))


@settings(max_examples=100, deadline=None)
@given(definitions())
def test_what_was_written_is_read_again(definition: Definition) -> None:
    assert read_definition(definition.render()) == definition


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=lambda variant: variant.name)
def test_the_definitions_of_this_project_are_read(variant: object) -> None:
    for_images = VARIANTS[variant.name]  # type: ignore[attr-defined]
    text = find_checkout().definition_path(for_images).read_text()
    assert read_definition(text) == define(for_images)


@settings(max_examples=100, deadline=None)
@given(definitions(), st.data())
def test_a_line_more_or_less_is_read_for_good_or_refused_but_never_crashes(
    definition: Definition, data: st.DataObject
) -> None:
    lines = definition.render().splitlines()
    position = data.draw(st.integers(0, len(lines) - 1))
    if data.draw(st.booleans()):
        del lines[position]
    else:
        lines.insert(position, data.draw(st.text(max_size=20)))
    with contextlib.suppress(DefinitionError):
        again = read_definition("\n".join(lines))
        assert read_definition(again.render()) == again


MISTAKES = [
    ("", "line 1: nothing is built here"),
    ("%post\n    x\n" + HEAD, "line 1: %post before any header"),
    ("From: x\nBootstrap: localimage\n", "line 1: From: comes before Bootstrap:"),
    ("Bootstrap: localimage\n%post\n    x\n", "line 1: this stage has no From"),
    ("Bootstrap: dokcer\nFrom: x\n", "line 1: Bootstrap: dokcer is unknown"),
    ("Bootstrap: localimage\nFrom:\n", "line 2: From: '' cannot be its value"),
    (HEAD + "From: y\n", "line 3: From: is there already, in line 2"),
    (HEAD + "Colour: y\n", "line 3: header Colour is unknown"),
    (HEAD + "some words\n", "line 3: 'some words' is neither"),
    (HEAD + "%bogus\n    x\n", "line 3: section %bogus is unknown"),
    (HEAD + "%POST\n    x\n", "line 3: section %POST is unknown"),
    (HEAD + "%\n", "line 3: section % is unknown"),
    (HEAD + "%post\n    x\n%post\n    y\n", "line 5: %post is there already, in line 3"),
    (HEAD + "%post\n    cat <<E\n    %test\nE\n", "line 5: '%test' would begin a section"),
    (HEAD + "%post\n\n%test\n    x\n", "line 3: %post is empty"),
    (HEAD + "%post -c /bin/bash\n    x\n", "line 3: %post -c /bin/bash: only %files takes words"),
    (HEAD + "%post\n    echo {{ X }}\n", "line 4: {{ X }} is not declared"),
    ("Bootstrap: localimage\nFrom: {{ X }}\n", "line 2: {{ X }} is not declared"),
    (HEAD + "%arguments\n    A=1\n%labels\n    v {{B}}\n", "line 6: {{ B }} is not declared"),
    (
        HEAD + "Stage: a\n%arguments\n    A=1\n\n" + HEAD + "%post\n    echo {{ A }}\n",
        "line 10: {{ A }} is not declared",
    ),
    (HEAD + "%arguments\n    A\n", "line 4: %arguments: 'A' is incomplete"),
    (HEAD + "%arguments\n    A=1\n    A=2\n", "line 5: %arguments: A is there already, in line 4"),
    (HEAD + "%arguments\n    A=1 # one\n", "line 4: %arguments: 'A=1 # one': what follows #"),
    (HEAD + "%labels\n    alone\n", "line 4: %labels: 'alone' is incomplete"),
    (HEAD + "%files\n    a\n", "line 4: %files: 'a': write source and destination"),
    (HEAD + "%files from\n    a b\n", "line 3: %files from: write %files"),
    (HEAD + "%files from x\n    a b\n", "line 3: %files from x: no earlier stage has that name; there are: none"),
    (HEAD + "Stage: a\n\n" + HEAD + "Stage: a\n", "line 7: stage a is there already, in line 3"),
    (HEAD + "Stage: a\n%files from a\n    a b\n", "line 4: %files from a: no earlier stage"),
]


@pytest.mark.parametrize(("text", "said"), MISTAKES)
def test_a_mistake_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        read_definition(text)
    assert said in str(caught.value)


@pytest.fixture(scope="module")
def real_apptainer(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment of a build, in a folder that holds a tiny base.sif."""
    image = tiny_image(tmp_path_factory.mktemp("tiny"))
    return {"IMAGE": str(image), **command_environment()}


GOOD = HEAD + "%arguments\n    V=seen\n%post\n    echo it is {{ V }}\n%labels\n    said {{ V }}\n"
REFUSED_BY_APPTAINER_TOO = [
    HEAD + "%bogus\n    x\n",
    HEAD + "%post\n    echo {{ X }}\n",
    "From: base.sif\n",
    HEAD + "Colour: y\n",
    HEAD + "%post\n    cat <<E\n    %test\nE\n",
    HEAD + "%files from nowhere\n    a b\n",
]


@pytest.mark.parametrize("text", [GOOD, *REFUSED_BY_APPTAINER_TOO])
def test_apptainer_refuses_what_it_was_thought_to_refuse(text: str, real_apptainer: Mapping[str, str]) -> None:
    builder = Builder.here()
    with work_folder(None, builder) as folder:
        context = folder / "context"
        shutil.copy(real_apptainer["IMAGE"], context / "base.sif")
        (context / "image.def").write_text(text)
        answer = subprocess.run(
            ["apptainer", "build", "--sandbox", "root", "image.def"], cwd=context, capture_output=True, text=True,
            env=build_environment(folder, builder), user=builder.uid, group=builder.uid,
            extra_groups=None if builder.uid is None else (),
        )  # fmt: skip
    if text == GOOD:
        assert answer.returncode == 0, answer.stderr
        assert "it is seen" in answer.stdout + answer.stderr
        assert read_definition(text).stages[0].labels == {"said": "{{ V }}"}
    else:
        assert answer.returncode != 0
        with pytest.raises(DefinitionError):
            read_definition(text)
