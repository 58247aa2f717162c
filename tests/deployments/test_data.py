from pathlib import Path

from flows.deployment.server_content import NO_DATA, describe_rows, how_to_get, marked


def test_a_mark_names_folder_and_way_and_goes_when_the_data_are_there() -> None:
    once = marked(["can"], "Trains.", Path("/data/hcrl_sa"))
    assert once["tags"] == ["can", NO_DATA]
    assert once["description"].endswith("Trains.")
    for word in ("/data/hcrl_sa", "kdgat data list", "make deploy"):
        assert word in once["description"]
    assert marked(once["tags"], once["description"], Path("/data/hcrl_sa")) == once
    assert marked(once["tags"], once["description"], None) == {"tags": ["can"], "description": "Trains."}
    assert marked([], None, None) == {"tags": [], "description": ""}


def test_simulated_data_are_made_by_a_command() -> None:
    assert "`kdgat data synth --out /data --dataset synthetic`" in how_to_get(Path("/data/synthetic"))


def test_deployments_without_data_are_listed_apart_and_paused_nights_are_called_so(tmp_path: Path) -> None:
    def row(dataset: str, *active: bool) -> dict[str, object]:
        schedules = [{"schedule": {"cron": "0 2 * * *", "timezone": "UTC"}, "active": one} for one in active]
        parameters = {"config": {"data": {"dataset": dataset, "data_root": str(tmp_path)}}}
        return {"schedules": schedules, "parameters": parameters}

    (tmp_path / "hcrl_sa").mkdir()
    lines = describe_rows(
        {
            "can/hcrl-sa": row("hcrl_sa"),
            "can/set-01": row("set_01"),
            "can/set-02": row("set_02"),
            "trees/folder": {"schedules": [{"schedule": {"interval": 60.0}, "active": True}], "parameters": {}},
            "nightly/asleep": row("hcrl_sa", False),
            "nightly/hcrl-sa": row("hcrl_sa", True),
            "nightly/set-01": row("set_01", False),
            "nightly/set-02": row("set_02", False),
            "nightly/set-03": row("set_03", False),
        }
    )
    assert [line.split(maxsplit=1) for line in lines[:4]] == [
        ["can/hcrl-sa"],
        ["trees/folder"],
        ["nightly/asleep", "schedule paused"],
        ["nightly/hcrl-sa", "0 2 * * * UTC"],
    ]
    assert "without data: set-01, set-02 (can and nightly); set-03 (nightly); " in lines[4], "each dataset once"
    assert "kdgat data list" in lines[4]
