"""Look at a figure as Vega lays it out: texts with their places, and marks with their data."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import altair as alt
import vl_convert

from fedpace.report.charts import Figure, file_spec, spec


class Box(NamedTuple):
    """A text as drawn: what it says, its role, and its sides."""

    text: str
    role: str
    left: float
    right: float
    top: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        across = min(self.right, other.right) - max(self.left, other.left)
        return across > 0 and min(self.bottom, other.bottom) - max(self.top, other.top) > 0


class Picture(NamedTuple):
    """What a file shows."""

    width: float
    height: float
    texts: list[Box]
    items: dict[str, list[dict[str, Any]]]


def looked_at(*figures: Figure) -> Picture:
    """Lay figures out as for a file."""
    made = vl_convert.vegalite_to_scenegraph(json.dumps(file_spec(*figures)))
    texts: list[Box] = []
    items: dict[str, list[dict[str, Any]]] = {}
    left, top = made["origin"]
    _walk(made["scenegraph"], left, top, "", texts, items)
    return Picture(made["width"], made["height"], texts, items)


def _walk(mark: dict[str, Any], x: float, y: float, role: str, texts: list[Box],
          items: dict[str, list[dict[str, Any]]]) -> None:  # fmt: skip
    role = mark.get("role", role)
    for item in mark.get("items", []):
        if mark["marktype"] == "group":
            for each in item.get("items", []):
                _walk(each, x + item.get("x", 0), y + item.get("y", 0), role, texts, items)
            continue
        items.setdefault(mark["marktype"], []).append(item)
        if mark["marktype"] == "text" and item.get("opacity", 1) > 0:
            texts.append(_box(item, role, x, y))


def _box(item: dict[str, Any], role: str, x: float, y: float) -> Box:
    lines = item.get("text", "")
    lines = lines if isinstance(lines, list) else [lines]
    size = item.get("fontSize", 11)
    width, height = 0.52 * size * max(map(len, map(str, lines))), size * len(lines)
    x, y = x + item.get("x", 0) + item.get("dx", 0), y + item.get("y", 0) + item.get("dy", 0)
    if item.get("angle", 0):
        across, half = x - size, width / 2
        return Box(" ".join(map(str, lines)), role, across, across + height, y - half, y + half)
    left = x - {"left": 0, "center": width / 2, "right": width}[item.get("align", "left")]
    top = y - {"top": 0, "middle": height / 2, "bottom": height, "alphabetic": size}.get(
        item.get("baseline", "alphabetic"), size
    )
    return Box(" ".join(map(str, lines)), role, left, left + width, top, top + height)


def tick_labels(picture: Picture) -> list[Box]:
    return [box for box in picture.texts if box.role == "axis-label" and box.text]


def titles(picture: Picture) -> list[str]:
    return [box.text for box in picture.texts if box.role == "axis-title"]


def assert_legible(*figures: Figure) -> Picture:
    """Nothing sticks out, no tick labels overlap, and both axes have some."""
    for figure in figures:
        assert_valid(figure)
    picture = looked_at(*figures)
    labels = tick_labels(picture)
    for one, other in itertools.combinations(labels, 2):
        assert not one.overlaps(other), (one, other)
    for box in picture.texts:
        if box.text.strip():
            assert -2 <= box.left <= box.right <= picture.width + 12, (box, picture.width)
            assert -2 <= box.top <= box.bottom <= picture.height + 2, (box, picture.height)
    assert len(labels) >= 4
    return picture


def assert_valid(figure: Figure) -> None:
    """Check a chart against the schema of Vega-Lite."""
    made = spec(figure)
    made.pop("width")
    made.pop("autosize")
    json.dumps(made, allow_nan=False)
    figure.chart.to_dict(validate=True)
    alt.Chart.from_dict({**made, "datasets": {}}, validate=True)


def layers_of(figure: Figure) -> Iterator[dict[str, Any]]:
    yield from spec(figure)["layer"]


def column(figure: Figure, data: str, name: str) -> Sequence[Any]:
    return [row[name] for row in figure.data[data]]
