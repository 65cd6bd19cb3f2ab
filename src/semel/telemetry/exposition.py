"""The metrics page in Prometheus' text format, and the pages of several processes merged into one.

Import this only where a page is made: prometheus_client takes longer to load than the rest of telemetry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from semel.telemetry.metrics import GAUGES, Histogram

Labels = Mapping[str, str]


class _Page(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return (family for family in self._families if family.samples)


def text(families: Iterable[Metric]) -> str:
    return generate_latest(_Page(families)).decode()


def counter(name: str, about: str, samples: Iterable[tuple[Labels, float]]) -> Metric:
    """`name` without its `_total`."""
    family = Metric(name, about, "counter")
    for labels, value in samples:
        family.add_sample(f"{name}_total", dict(labels), value)
    return family


def gauge(name: str, about: str, samples: Iterable[tuple[Labels, float]]) -> Metric:
    family = Metric(name, about, "gauge")
    for labels, value in samples:
        family.add_sample(name, dict(labels), value)
    return family


def histogram(name: str, about: str, samples: Iterable[tuple[Labels, Histogram]]) -> Metric:
    family = Metric(name, about, "histogram")
    for labels, values in samples:
        counts, total = values.read()
        bounds = [*(f"{bound:g}" for bound in values.bounds), "+Inf"]
        for bound, count in zip(bounds, counts, strict=True):
            family.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
        family.add_sample(f"{name}_sum", dict(labels), total)
        family.add_sample(f"{name}_count", dict(labels), counts[-1])
    return family


# Counters and histograms of several processes are summed, and must never go down. When a process ends, its gauges go
# with it, but its counts stay: keep `without_gauges` of its last families and merge them in as well. Otherwise
# Prometheus would take the drop for a restart, and count everything again.


def merged(processes: Iterable[Iterable[Metric]]) -> list[Metric]:
    """The families of several processes as those of one."""
    families: dict[str, Metric] = {}
    values: dict[tuple[str, str, tuple[tuple[str, str], ...]], list[float]] = {}
    for family in (family for process in processes for family in process):
        families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        for sample in family.samples:
            values.setdefault((family.name, sample.name, tuple(sample.labels.items())), []).append(sample.value)
    for (name, sample_name, labels), each in values.items():
        family = families[name]
        merge = _merging(name) if family.type == "gauge" else sum
        family.add_sample(sample_name, dict(labels), merge(each))
    return list(families.values())


def without_gauges(families: Iterable[Metric]) -> list[Metric]:
    """The families that still count after a process has ended."""
    return [family for family in families if family.type != "gauge"]


def _merging(gauge: str) -> Callable[[list[float]], float]:
    known = GAUGES.get(gauge.removeprefix("semel_"))
    return sum if known is None else known[0]
