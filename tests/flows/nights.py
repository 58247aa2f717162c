"""The places of a nightly deployment, and its flow called as the deployment does."""

from pathlib import Path
from typing import Any

from prefect.client.schemas.objects import State

from flows.nightly import nightly
from kdgat.canbus.simulation import write_dataset
from kdgat.family.night import NightlyDirectory
from kdgat.registry import PromotionRule, Registry
from tests.can.small_runs import make_config
from tests.support.small_runs import ONE_NETWORK

# The first model of these nights has learned nothing, so it hardly ever alarms: any other raises more false alarms.
WITHOUT_FLOORS = PromotionRule(minimum=0.0, most_false_alarms=1.0, more_false_alarms=1.0, more_alarms_per_hour=1e6)


class NightlyRuns:
    """The places of a deployment, and one night after the other in it."""

    def __init__(self, path: Path) -> None:
        self.data_root = path / "data"
        self.inbox = path / "inbox"
        self.directory = NightlyDirectory(path / "nights")
        self.registry = Registry(path / "registry")
        self.dataset = write_dataset(self.data_root, "synthetic", "tiny")
        self.inbox.mkdir()

    def parameters(self, *overrides: str, **others: Any) -> dict[str, Any]:
        data = {"dataset": "synthetic", "data_root": str(self.data_root)}
        config = make_config("quick", (*ONE_NETWORK, *overrides), data=data)
        places = {"registry": self.registry.path, "out": self.directory.path, "inbox": self.inbox}
        return {"config": config, **places, "settle_s": 0.0, "promotion": WITHOUT_FLOORS, **others}

    def run(self, *overrides: str, **others: Any) -> State[Any]:
        return nightly(**self.parameters(*overrides, **others), return_state=True)

    def in_service(self) -> str:
        entry = self.registry.in_service("can", "synthetic")
        assert entry is not None
        return entry.id

    def report(self) -> str:
        return max(self.directory.reports_path.iterdir(), key=lambda path: path.stat().st_mtime_ns).read_text()
