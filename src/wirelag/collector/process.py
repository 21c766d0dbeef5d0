"""The process itself as Prometheus metrics, with the usual names.

prometheus_client has a collector of its own, which needs /proc/stat: the unit hides that (ProcSubset=pid).
"""

from __future__ import annotations

import os
import resource
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_BEGAN_S: Final = time.time()


def of_process() -> list[Metric]:
    """Time, memory, and file descriptors of this process."""
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    used = resource.getrusage(resource.RUSAGE_SELF)
    gauges = {
        "process_start_time_seconds": ("When the process started.", _BEGAN_S),
        "process_max_fds": ("How many files it may open.", float(resource.getrlimit(resource.RLIMIT_NOFILE)[0])),
    }
    try:
        with open("/proc/self/statm") as file:
            virtual, resident = (int(word) * os.sysconf("SC_PAGE_SIZE") for word in file.read().split()[:2])
        gauges["process_virtual_memory_bytes"] = ("Its virtual memory.", float(virtual))
        gauges["process_resident_memory_bytes"] = ("Its memory.", float(resident))
        gauges["process_open_fds"] = ("How many files it has open.", float(len(os.listdir("/proc/self/fd"))))
    except OSError:
        pass  # no file descriptor is left, or no /proc
    seconds = CounterMetricFamily("process_cpu_seconds", "Its processor time.", value=used.ru_utime + used.ru_stime)
    return [seconds, *(GaugeMetricFamily(name, text, value=value) for name, (text, value) in gauges.items())]
