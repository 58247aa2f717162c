from kdgat.run import PlannedStage
from kdgat.run.plan import InputReference, flowchart


def stage(name: str, **inputs: InputReference) -> PlannedStage:
    return PlannedStage(name, name, "large", 0, {}, inputs)


def test_an_arrow_leads_from_each_stage_to_those_that_need_it():
    both = {"data": InputReference("prepare", "store"), "teacher": InputReference("train", "weights")}
    plan = [stage("prepare"), stage("train", data=both["data"]), stage("distill", **both)]
    arrows = [line.strip() for line in flowchart(plan).splitlines() if "-->" in line]
    assert arrows == ["s0 --> s1", "s0 --> s2", "s1 --> s2"]


def test_states_stand_below_the_names_of_a_run():
    assert 's0["prepare<br/>cached"]' in flowchart([stage("prepare")], {"prepare": "cached"})
