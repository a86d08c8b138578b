"""Draws KL by layer and by kind of text as an SVG, without a drawing library.

Knows bars and labels; knows nothing of models.
"""

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT, _MARGIN, _LABELS = 860, 260, 60, 90
_COLOURS = ("#3b6ea5", "#c0603a", "#5a8f4a", "#8a5aa5", "#a58a2c")


def draw(by_kind: Mapping[str, Mapping[str, float]], by_layer: Mapping[str, Sequence[float]]) -> str:
    """Return one SVG with a chart of each.

    Args:
        by_kind: Mean KL by version and kind of text.
        by_layer: Mean KL by version and layer; versions without it are left out.
    """
    kinds = list(next(iter(by_kind.values()), {}))
    charts = [("mean KL by kind of text, nats", kinds, {v: list(k.values()) for v, k in by_kind.items()})]
    layers = {version: list(values) for version, values in by_layer.items() if values}
    if layers:
        longest = max(map(len, layers.values()))
        charts.append(("mean KL with one layer quantised, nats", [str(i) for i in range(longest)], layers))
    height = _HEIGHT + _LABELS
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height * len(charts)}"'
        ' font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for index, (title, labels, series) in enumerate(charts):
        parts.append(f'<g transform="translate(0,{index * height})">')
        parts += _chart(title, labels, series)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _chart(title: str, labels: Sequence[str], series: Mapping[str, Sequence[float]]) -> list[str]:
    top = max((value for values in series.values() for value in values), default=0.0) or 1.0
    inner, base = _WIDTH - 2 * _MARGIN, _HEIGHT
    slot = inner / max(1, len(labels))
    bar = slot * 0.8 / max(1, len(series))
    parts = [f'<text x="{_MARGIN}" y="24" font-size="15">{escape(title)}</text>']
    for step in range(5):
        y = base - (base - 50) * step / 4
        parts.append(
            f'<line x1="{_MARGIN}" x2="{_WIDTH - _MARGIN}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        )
        parts.append(f'<text x="{_MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end">{top * step / 4:.2g}</text>')
    for number, (version, values) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        for place, value in enumerate(values):
            tall = (base - 50) * value / top
            x = _MARGIN + slot * place + slot * 0.1 + bar * number
            parts.append(
                f'<rect x="{x:.1f}" y="{base - tall:.1f}" width="{bar:.1f}" height="{tall:.1f}"'
                f' fill="{colour}">'
                f"<title>{escape(version)} {escape(labels[place])}: {value:.5f}</title></rect>"
            )
        x = _MARGIN + 230 * number
        parts.append(f'<rect x="{x}" y="{base + 40}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="{base + 51}">{escape(version)}</text>')
    for place, label in enumerate(labels):
        x = _MARGIN + slot * (place + 0.5)
        parts.append(f'<text x="{x:.1f}" y="{base + 18}" text-anchor="middle">{escape(label)}</text>')
    return parts
