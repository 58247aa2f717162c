"""A real installation that asks for no string, and one that begins to."""

from pathlib import Path

import httpx
import pytest

from tests.deployments.installed import Installed

pytestmark = pytest.mark.prefect


@pytest.mark.nightly
def test_without_a_string_everything_works_and_an_installation_of_before_gets_one(tmp_path: Path) -> None:
    other = Installed(tmp_path, KDGAT_AUTH="0")
    try:
        answer = other.command("up")
        assert answer.returncode == 0, answer.stdout + answer.stderr
        assert f"set -a; . {other.here.path}; set +a" in answer.stdout
        assert "note: every user of this machine" in answer.stdout
        assert "max_epochs" in other.run_that_is_refused()["state"]["message"]
        assert other.command("status").returncode == 0

        del other.environment["KDGAT_AUTH"]
        path = other.here.path
        path.write_text(path.read_text().replace("KDGAT_AUTH=off", "KDGAT_AUTH=0"))  # as before there were strings
        refused = other.command("up")
        assert refused.returncode == 1
        assert "KDGAT_AUTH=1: the server that runs was started with 0: `make undeploy` first" in refused.stderr
        assert other.command("down").returncode == 0
        assert other.command("up").returncode == 0
        with httpx.Client(trust_env=False) as client:
            status = client.post(f"{other.here.url}/flow_runs/filter", json={}).status_code
        assert status == httpx.codes.UNAUTHORIZED
        # Command, worker and the run's own process have all been let in; the run of before is still known.
        runs = {"flow_runs": {"state": {"type": {"any_": ["FAILED"]}}}}
        assert other.prefect("deployment", "run", "can/synthetic", "--watch", "--param", 'overrides=["a=1"]').returncode
        assert len(other.api("POST", "/flow_runs/filter", runs)) == 2
    finally:
        other.command("down")
    assert other.processes() == {}
