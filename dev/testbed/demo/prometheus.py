"""A Prometheus of our own, Debian's, and pictures of what a Grafana dashboard would ask it.

Grafana is no package of Debian. What its dashboard asks is asked here all the same: each panel's expressions, over the
time of a run, and drawn where the panel is.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.debian import run_or_fail
from testbed.distributions import cache_folder, put_in_place
from testbed.ports import LOOPBACK, listens
from testbed.process import Command, NodeError
from testbed.server import LocalServer

__all__ = ["Prometheus", "Series", "draw", "fetch_prometheus", "panels"]

_START_TIMEOUT_S = 30.0
_DOWNLOAD = 'cd "$0" && exec apt-get download -q -o APT::Sandbox::User=root prometheus'
_SCRAPE_S = 1
_POINTS = 240
_GAP_S = 4.0
#: What Grafana puts in the place of its variables; a rate needs some scrapes.
_VARIABLES = {"$query": ".*", "$reads": ".*", "$__rate_interval": f"{8 * _SCRAPE_S}s"}

#: Legend, and points as (seconds since 1970, value).
Series = tuple[str, Sequence[tuple[float, float]]]


def fetch_prometheus() -> Path:
    """The program, taken from Debian's package when it is not there yet.

    Raises:
        NodeError: this is no Debian, or the package cannot be fetched.
    """
    installed = shutil.which("prometheus")
    if installed is not None:
        return Path(installed)
    folder = cache_folder() / "prometheus"
    if not folder.is_dir():
        if shutil.which("apt-get") is None:
            raise NodeError("Prometheus is taken from Debian, and this is no Debian; install 'prometheus'")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".prometheus-", dir=folder.parent) as temporary:
            place = Path(temporary)
            # apt-get puts it where it is run.
            download = ["sh", "-c", _DOWNLOAD, temporary]
            try:
                run_or_fail(download)
            except NodeError:  # nobody has asked the mirror yet
                run_or_fail(["apt-get", "update"])
                run_or_fail(download)
            (package,) = place.glob("*.deb")
            run_or_fail(["dpkg-deb", "--extract", str(package), str(place / "root")])
            put_in_place(place / "root", folder)
    return folder / "usr" / "bin" / "prometheus"


class Prometheus(LocalServer):
    """One server that fetches from one address.

    Args:
        target: `host:port` of what is to be fetched.
        config: its configuration, as YAML; by default one that fetches from `target` each second.

    Raises:
        NodeError: it cannot be had.
    """

    title = "Prometheus"

    def __init__(self, target: str, config: str = "") -> None:
        self._program = fetch_prometheus()
        super().__init__(start_timeout_s=_START_TIMEOUT_S)
        self._port = self._reserve_port()
        self.target = target
        jobs = [{"job_name": "pyspark-mq", "static_configs": [{"targets": [target]}]}]
        # YAML takes JSON.
        self._config = config or json.dumps({"global": {"scrape_interval": f"{_SCRAPE_S}s"}, "scrape_configs": jobs})

    @property
    def url(self) -> str:
        """Of its own page."""
        return f"http://{LOOPBACK}:{self._port}"

    def _command(self) -> Command:
        (self.folder / "prometheus.yml").write_text(self._config, "utf-8")
        command = [
            str(self._program), "--config.file=prometheus.yml", f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address={LOOPBACK}:{self._port}", "--log.level=warn",
        ]  # fmt: skip
        return Command(command, os.environ)

    def _ready(self) -> bool:
        return listens(self._port)

    def over(
        self, expression: str, begin_s: float, end_s: float
    ) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Values of an expression from then to then: labels, and points of each series.

        Raises:
            NodeError: Prometheus does not understand it.
        """
        step = max(_SCRAPE_S, (end_s - begin_s) / _POINTS)
        asked = urllib.parse.urlencode({"query": expression, "start": begin_s, "end": end_s, "step": f"{step:.3f}"})
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query_range?{asked}", timeout=30) as answer:
                found = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as refused:
            raise NodeError(f"Prometheus refuses {expression!r}: {refused.read().decode()[:500]}") from None
        return [(one["metric"], [(at, float(value)) for at, value in one["values"]]) for one in found]


def panels(
    dashboard: Mapping[str, Any], prometheus: Prometheus, begin_s: float, end_s: float
) -> list[tuple[Mapping[str, Any], list[Series]]]:
    """Each panel of a dashboard with what its expressions gave."""
    variables = {**_VARIABLES, "$__range": f"{max(1, round(end_s - begin_s))}s"}
    found = []
    for panel in dashboard["panels"]:
        series: list[Series] = []
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in sorted(variables.items(), key=lambda item: -len(item[0])):
                expression = expression.replace(name, value)
            for labels, points in prometheus.over(expression, begin_s, end_s):
                legend = target["legendFormat"]
                for label, value in labels.items():
                    legend = legend.replace(f"{{{{{label}}}}}", value)
                series.append((legend, points))
        found.append((panel, series))
    return found


def draw(found: Sequence[tuple[Mapping[str, Any], list[Series]]], file: Path) -> None:
    """A picture of panels, each where its dashboard has it.

    Raises:
        ModuleNotFoundError: matplotlib is not there (extra `docs`).
    """
    import matplotlib as mpl  # noqa: PLC0415 - an extra

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel, _ in found)
    figure = plt.figure(figsize=(14, 14 * height / 24 * 0.62), dpi=110)
    begin_s = min((points[0][0] for _, series in found for _, points in series if points), default=0.0)
    for panel, series in found:
        box = panel["gridPos"]
        left, bottom = box["x"] / 24 + 0.035, 1 - (box["y"] + box["h"] - 1.1) / height
        axes = figure.add_axes((left, bottom, box["w"] / 24 - 0.05, (box["h"] - 2.2) / height))
        axes.set_title(panel["title"], loc="left", fontsize=9, fontweight="bold")
        if panel["type"] == "stat":
            axes.axis("off")
            last = series[0][1][-1][1] if series and series[0][1] else None
            axes.text(0.0, 0.3, "none" if last is None else f"{last:,.0f}", fontsize=22)
            continue
        stacked = panel["fieldConfig"]["defaults"]["custom"].get("stacking", {}).get("mode") == "normal"
        if stacked and series:
            times = sorted({at for _, points in series for at, _ in points})
            rows = [[dict(points).get(at, 0.0) for at in times] for _, points in series]
            axes.stackplot([at - begin_s for at in times], rows, labels=[legend for legend, _ in series], alpha=0.8)
        else:
            for legend, points in series:
                whole = _with_gaps(points)
                axes.plot([at - begin_s for at, _ in whole], [value for _, value in whole], label=legend, linewidth=1)
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
        if series:
            axes.legend(fontsize=6, loc="upper right", framealpha=0.6)
    figure.savefig(file)
    plt.close(figure)


def _with_gaps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """A line ends where there was nothing to fetch."""
    whole: list[tuple[float, float]] = []
    for at, value in points:
        if whole and at - whole[-1][0] > _GAP_S:
            whole.append((at, math.nan))
        whole.append((at, value))
    return whole
