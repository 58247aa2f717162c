"""CAN logs to graphs of windows: a file or a live bus in, `Messages` as arrays and their windows as `GraphColumns` out.

```python
from kdgat.canbus import WindowConfig, read_recording, windows_to_graphs

messages = read_recording("drive.log")  # candump, CSV, ASC, TRC, Parquet; BLF, MF4 and PCAP with the extra `logs`
graphs = windows_to_graphs(messages, WindowConfig(size=100, stride=100))
```

A library: it imports `kdgat.base` and the half of `kdgat.graphs` that needs no torch. Readers and compiled code are
loaded by the functions that need them. Names beyond these: `kdgat.canbus.features` (what the columns are),
`kdgat.canbus.injection`, `kdgat.canbus.simulation`, and `catalog.py` for folders of recordings.
"""

from typing import TYPE_CHECKING

from kdgat.base.lazy import lazy_names

if TYPE_CHECKING:
    from kdgat.canbus.bus import open_bus as open_bus
    from kdgat.canbus.catalog import find_recordings as find_recordings
    from kdgat.canbus.features.graphs import windows_to_graphs as windows_to_graphs
    from kdgat.canbus.features.online import OnlineWindows as OnlineWindows
    from kdgat.canbus.injection.injection import inject_attacks as inject_attacks
    from kdgat.canbus.logs import read_recording as read_recording
    from kdgat.canbus.logs import write_recording as write_recording
    from kdgat.canbus.messages import Messages as Messages
    from kdgat.canbus.messages import ReadLimits as ReadLimits
    from kdgat.canbus.messages import RecordingError as RecordingError
    from kdgat.canbus.settings import InjectionConfig as InjectionConfig
    from kdgat.canbus.settings import WindowConfig as WindowConfig
    from kdgat.canbus.simulation.synthetic import make_vehicle as make_vehicle
    from kdgat.canbus.simulation.synthetic import simulate as simulate
    from kdgat.canbus.stream import follow_file as follow_file
    from kdgat.canbus.stream import stream_recording as stream_recording

__all__, __getattr__, __dir__ = lazy_names(__name__)
