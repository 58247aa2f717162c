"""A real installation that asks for a string."""

from pathlib import Path

import httpx
import pytest

from tests.deployments.installed import Installed

pytestmark = pytest.mark.prefect


@pytest.mark.nightly
def test_with_a_string_to_ask_for_everything_works_and_strangers_are_refused(tmp_path: Path) -> None:
    other = Installed(tmp_path, KDGAT_AUTH="1")
    try:
        answer = other.command("up")
        assert answer.returncode == 0, answer.stdout + answer.stderr
        secret = other.here.auth_string.partition(":")[2]
        assert f"set -a; . {other.here.path}; set +a" in answer.stdout
        for auth in (None, ("kdgat", "guessed")):
            with httpx.Client(trust_env=False, auth=auth) as client:
                assert client.post(f"{other.here.url}/flow_runs/filter", json={}).status_code == 401
        page = {"Origin": "http://elsewhere.example", "Access-Control-Request-Method": "POST"}
        with httpx.Client(trust_env=False) as client:
            asked = client.options(f"{other.here.url}/flow_runs/filter", headers=page)
        assert "access-control-allow-origin" not in asked.headers

        # Command, worker and the run's own process have all been let in.
        assert "max_epochs" in other.run_that_is_refused()["state"]["message"]
        events = other.api("POST", "/events/filter", {"filter": {"event": {"name": ["prefect.flow-run.Failed"]}}})
        assert events["total"] == 1
        assert other.command("status").returncode == 0
        assert other.command("up").returncode == 0
        texts = [path.read_text(errors="replace") for path in other.here.home.glob("*.[jl]*")]
        assert len(texts) > 3
        assert not any(secret in text for text in [*texts, answer.stdout, answer.stderr])
    finally:
        other.command("down")
    assert other.processes() == {}
