"""How pictures look: colours, sheets, axes.

Colours are few, told apart by the colour-blind too, and never alone: what one says a label, a mark or a dash
says as well. A picture is drawn in the light ones. Inline in a page each becomes the page's variable of its
name, so that one drawing serves light and dark.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from loadtest.report.words import number

PALETTE = {
    "ground": ("#f3f6f8", "#0c1317"),
    "surface": ("#ffffff", "#121b21"),
    "raised": ("#eaf0f3", "#1b272f"),
    "line": ("#d5dee3", "#2a3942"),
    "ink": ("#14232c", "#e6eef2"),
    "ink-2": ("#4a5d69", "#9db0bb"),
    "tide": ("#0b6e84", "#5fc9dd"),  # what there is most of: the first of a kind
    "sand": ("#c47a06", "#f0b84a"),
    "plum": ("#7434b8", "#b688f7"),
    "haze": ("#a9bac4", "#50626d"),  # waiting, and what is not to be looked at first
    "danger": ("#b3261e", "#ff8a80"),
    "danger-soft": ("#fbe9e7", "#3a1d1c"),
    "notice-soft": ("#fdf3df", "#33280f"),
    "good-soft": ("#e2f2f0", "#12302f"),
    "low": ("#6db6c6", "#2f7f90"),  # p50, p90, p99: the same, ever stronger
    "middle": ("#24879d", "#57b6c9"),
    "high": ("#083f4d", "#b5ecf7"),
    "ramp-1": ("#9dc9d6", "#27505c"),  # few to many, when there are several of them
    "ramp-2": ("#7bb3c7", "#2f6675"),
    "ramp-3": ("#5c9cb6", "#3a7d8c"),
    "ramp-4": ("#4284a3", "#4c95a3"),
    "ramp-5": ("#2f6c8d", "#67acb8"),
    "ramp-6": ("#225474", "#88c3cc"),
    "ramp-7": ("#1a3d59", "#aedae0"),
    "ramp-8": ("#14283d", "#daf1f4"),
}
"""Light and dark, by name. No two light ones are the same."""

RAMP = tuple(f"ramp-{step}" for step in range(1, 9))
_TITLE_CHARACTER = 8.6  # its width, roughly
_LEGEND_CHARACTER = 6.8
_LEGEND_HANDLE = 42.0
_TICKS_WIDTH = 64.0
PERCENTILES = {"p50": "low", "p90": "middle", "p99": "high"}


def colour(name: str) -> str:
    """To draw with."""
    return PALETTE[name][0]


def ramp(count: int) -> list[str]:
    """Colours for so many things in order, the ends of the ramp included."""
    if count == 1:
        return [colour(RAMP[-3])]
    return [colour(RAMP[round(index * (len(RAMP) - 1) / (count - 1))]) for index in range(count)]


@dataclass(frozen=True, slots=True)
class Sheet:
    """What is drawn on. Its unit is a pixel of the page; text is 12 of them on either."""

    width: int
    columns: int  # of panels, at most

    def figure(self, panels: int, height: int) -> tuple[Figure, Sequence[Axes]]:
        """``panels`` of that height, filled in row by row."""
        columns = min(self.columns, panels)
        rows = -(-panels // columns)
        room = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
        figure = Figure(figsize=(self.width / 72, rows * height / 72), layout=room)
        grid = figure.subplots(rows, columns, squeeze=False).flatten()
        for spare in grid[panels:]:
            spare.remove()
        return figure, list(grid[:panels])


WIDE = Sheet(width=960, columns=2)
NARROW = Sheet(width=380, columns=1)


@contextmanager
def drawing() -> Iterator[None]:
    """Within it matplotlib draws as we do."""
    ink, faint, line = colour("ink"), colour("ink-2"), colour("line")
    settings: dict[Any, Any] = {
        "font.family": "DejaVu Sans",
        "font.size": 12,
        "text.color": ink,
        "text.parse_math": False,
        "figure.facecolor": colour("surface"),
        "axes.facecolor": colour("surface"),
        "axes.edgecolor": line,
        "axes.labelcolor": faint,
        "axes.titlesize": 13,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlecolor": ink,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": line,
        "grid.linewidth": 0.8,
        "xtick.color": line,
        "ytick.color": line,
        "xtick.labelcolor": faint,
        "ytick.labelcolor": faint,
        "ytick.left": False,
        "xtick.minor.visible": False,
        "legend.frameon": False,
        "legend.fontsize": 11.5,
        "lines.linewidth": 2.0,
        "lines.solid_capstyle": "butt",
        "savefig.facecolor": colour("surface"),
        "svg.fonttype": "none",
    }
    with rc_context(settings):
        yield


def latency_axis(axes: Axes, values: Sequence[float], which: str) -> None:
    """Ticks for ms on the x or y axis; by logarithm where there is more than a factor of 3 in them."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = min(values), max(values)
    if low > 0 and high / low > 3:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
        subs = (1.0, 2.0, 5.0) if high / low < 300 else (1.0,)
        axis.set_major_locator(LogLocator(base=10, subs=subs, numticks=12))
        axis.set_minor_locator(NullLocator())
        margin = (high / low) ** (0.04 if which == "x" else 0.1)
        (axes.set_xlim if which == "x" else axes.set_ylim)(low / margin, high * margin)
    else:
        axis.set_major_locator(MaxNLocator(5))
        margin = max((high - low) * (0.06 if which == "x" else 0.12), high * 0.02, 1e-9)
        (axes.set_xlim if which == "x" else axes.set_ylim)(max(0.0, low - margin), high + margin)
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def value_axis(axes: Axes, values: Sequence[float], label: str) -> None:
    """The loads of a sweep, which mostly double, on the x axis: a tick at each that has room."""
    if min(values) > 0 and max(values) / min(values) > 3:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        margin = (max(values) / min(values)) ** 0.06
        axes.set_xlim(min(values) / margin, max(values) * margin)
        axes.xaxis.set_major_locator(FixedLocator(_apart(values, 1.25)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axes.set_xlabel(label)


def _apart(values: Sequence[float], factor: float) -> list[float]:
    kept: list[float] = []
    for value in sorted(values):
        if not kept or value >= kept[-1] * factor:
            kept.append(value)
    return kept


def from_zero(axes: Axes, unit: str = "") -> None:
    """The y axis begins at zero."""
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10], integer=unit == "requests"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def share_axis(axes: Axes) -> None:
    axes.set_ylim(0, 1.06)
    axes.yaxis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:.0f} %"))


def nothing_to_see(axes: Axes, why: str) -> None:
    """In place of curves."""
    axes.set_axis_off()
    axes.text(0, 0.5, why, transform=axes.transAxes, color=colour("ink-2"), va="center", wrap=True)


def head(axes: Axes, title: str) -> None:
    """Give a panel its title, in as many lines as that needs."""
    axes.set_title(textwrap.fill(title, int(_panel_width(axes) / _TITLE_CHARACTER)), pad=8)


def legend_above(axes: Axes) -> None:
    """Between title and curves, in as many lines as it needs."""
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    needed = sum(_LEGEND_HANDLE + _LEGEND_CHARACTER * len(label) for label in labels)
    columns = math.ceil(len(handles) / math.ceil(needed / _panel_width(axes)))
    lines = math.ceil(len(handles) / columns)
    axes.legend(
        handles, labels, loc="lower left", bbox_to_anchor=(0, 1.01), ncols=columns, borderaxespad=0,
        handlelength=1.4, columnspacing=1.2, handletextpad=0.5,
    )  # fmt: skip
    axes.set_title(axes.get_title(loc="left"), pad=11 + 19 * lines)


def _panel_width(axes: Axes) -> float:
    """What there is beside the ticks of the y axis."""
    place = axes.get_subplotspec()
    assert place is not None and isinstance(axes.figure, Figure)
    return float(axes.figure.get_figwidth()) * 72 / place.get_gridspec().ncols - _TICKS_WIDTH


def place_across(axes: Axes, value: float) -> float:
    """Where between the ends of the x axis a value stands."""
    across, _ = axes.transAxes.inverted().transform(axes.transData.transform((value, 0.5)))
    return float(across)


def on_surface() -> dict[str, object]:
    """A ground for text that stands over curves."""
    return {"facecolor": colour("surface"), "edgecolor": "none", "alpha": 0.8, "pad": 1.0}


def save_png(drawn: Figure, path: Path) -> None:
    """At twice the resolution."""
    with drawing():
        drawn.savefig(path, format="png", dpi=144, metadata={"Software": None})


_HEX = re.compile(r"#[0-9a-f]{6}\b")
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_PATH = re.compile(r' d="[^"]*"')
_LONG_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_ID = re.compile(r' id="([^"]+)"')
_REFERENCE = re.compile(r'(?:url\(#|href="#)([^)"]+)')
_SIZE = re.compile(r' (?:width|height)="[\d.]+pt"')
_NAMES = {light: name for name, (light, _) in PALETTE.items()}


def inline_svg(drawn: Figure, name: str) -> str:
    """For a page that has the palette as its variables. ``name`` is this drawing's alone on that page."""
    out = io.StringIO()
    with drawing(), rc_context({"svg.hashsalt": name}):
        drawn.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    text = _METADATA.sub("", text[text.index("<svg") :])
    head, _, body = text.partition(">")
    text = f"{_SIZE.sub('', head)}>{body}"
    text = _HEX.sub(lambda found: f"var(--{_NAMES[found[0]]})" if found[0] in _NAMES else found[0], text)
    text = _PATH.sub(lambda path: _LONG_NUMBER.sub(lambda long: f"{float(long[0]):.1f}", path[0]), text)
    used = set(_REFERENCE.findall(text))
    return _ID.sub(lambda found: found[0] if found[1] in used else "", text)
