"""One HTML file with inline SVG: tables, line charts, confusion matrices. No script, no font, nothing fetched.

Colours follow the reader's light or dark setting; every chart has a title that screen readers say.
"""

import html
import math
from collections.abc import Iterable, Mapping, Sequence

COLOURS = ("#2563eb", "#d97706", "#059669", "#7c3aed")

STYLE = """
:root {
  color-scheme: light dark;
  --ink: #1c1917; --soft: #78716c; --line: #e7e5e4; --paper: #fff; --cell: 37, 99, 235;
}
@media (prefers-color-scheme: dark) {
  :root { --ink: #f5f5f4; --soft: #a8a29e; --line: #44403c; --paper: #1c1917; --cell: 96, 165, 250; }
}
body {
  font: 16px/1.55 system-ui, sans-serif;
  color: var(--ink); background: var(--paper);
  max-width: 54rem; margin: 2.5rem auto; padding: 0 1.2rem;
}
h1 { font-size: 1.7rem; line-height: 1.2; }
h2 { font-size: 1.15rem; margin-top: 2.4rem; }
p.note, figcaption { color: var(--soft); font-size: .9rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; }
th { color: var(--soft); font-weight: 500; }
figure { margin: 1rem 0; overflow-x: auto; }
svg { max-width: 100%; height: auto; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
mark { background: rgba(var(--cell), .18); color: inherit; border-radius: .2rem; padding: 0 .15rem; }
.matrix td, .matrix th { text-align: center; min-width: 2.4rem; padding: .35rem .4rem; }
.matrix th:first-child { text-align: right; }
.fill { margin: .9rem 0; }
.fill small { color: var(--soft); }
"""


def page(title: str, blocks: Iterable[str]) -> str:
    """A whole HTML document; `blocks` are already HTML."""
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n<body>\n<h1>{html.escape(title)}</h1>\n"
        + "\n".join(blocks)
        + "\n</body>\n</html>\n"
    )


def heading(text: str) -> str:
    return f"<h2>{html.escape(text)}</h2>"


def note(text: str) -> str:
    return f'<p class="note">{html.escape(text)}</p>'


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<figure><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></figure>"


def line_chart(title: str, series: Mapping[str, Sequence[tuple[float, float]]], *, x: str, y: str) -> str:
    """A chart of (x, y) points by name; points that are not finite are left out."""
    series = {name: [point for point in points if math.isfinite(point[1])] for name, points in series.items()}
    series = {name: points for name, points in series.items() if points}
    if not series:
        return note(f"{title}: nothing was measured")
    width, height, left, right, top, bottom = 760, 300, 56, 14, 28, 44
    every = [point for points in series.values() for point in points]
    x_ticks = ticks(min(p[0] for p in every), max(p[0] for p in every))
    y_ticks = ticks(min(p[1] for p in every), max(p[1] for p in every))

    def place(point: tuple[float, float]) -> tuple[float, float]:
        across = (point[0] - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
        up = (point[1] - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return left + across * (width - left - right), height - bottom - up * (height - top - bottom)

    parts = [
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(title)}">'
        f"<title>{html.escape(title)}</title>"
    ]
    for value in y_ticks:
        level = place((x_ticks[0], value))[1]
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{level:.1f}" y2="{level:.1f}" stroke="var(--line)"/>')
        parts.append(f'<text x="{left - 8}" y="{level + 4:.1f}" text-anchor="end">{value:g}</text>')
    parts += [
        f'<text x="{place((value, 0))[0]:.1f}" y="{height - bottom + 18}" text-anchor="middle">{value:,g}</text>'
        for value in x_ticks
    ]
    parts.append(
        f'<text x="{(left + width - right) / 2}" y="{height - 6}" text-anchor="middle">{html.escape(x)}</text>'
    )
    parts.append(f'<text x="{left}" y="14">{html.escape(y)}</text>')
    for index, (name, points) in enumerate(series.items()):
        colour, path = COLOURS[index % len(COLOURS)], " ".join(f"{a:.1f},{b:.1f}" for a, b in map(place, points))
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>'
        )
        if len(points) < 40:
            parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in map(place, points)]
        parts.append(
            f'<rect x="{width - right - 190}" y="{top + 18 * index - 5}" width="12" height="3" fill="{colour}"/>'
        )
        parts.append(f'<text x="{width - right - 172}" y="{top + 18 * index + 1}">{html.escape(name)}</text>')
    return f"<figure>{''.join(parts)}</svg><figcaption>{html.escape(title)}</figcaption></figure>"


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round numbers that enclose low..high, about so many."""
    if high <= low:
        low, high = low - (abs(low) or 1) * 0.5, high + (abs(high) or 1) * 0.5
    rough = (high - low) / about
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(index * step, 10) for index in range(first, last + 1)]


def confusion(labels: Sequence[str], matrix: Sequence[Sequence[int]]) -> str:
    """Rows are the true labels, columns the predicted ones; shade by share of the row."""
    head = "<th></th>" + "".join(f"<th>{html.escape(label)}</th>" for label in labels)
    body = []
    for label, row in zip(labels, matrix, strict=True):
        total = sum(row) or 1
        cells = "".join(
            f'<td style="background: rgba(var(--cell), {count / total * 0.75:.2f})">{count}</td>' for count in row
        )
        body.append(f"<tr><th>{html.escape(label)}</th>{cells}</tr>")
    return (
        f'<figure><table class="matrix"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'
        "<figcaption>Rows: the true label. Columns: the prediction.</figcaption></figure>"
    )


def filled(before: str, after: str, guesses: Sequence[tuple[str, float]], truth: str) -> str:
    """One masked sentence with its guesses; the right one is marked."""
    shown = ", ".join(
        (f"<mark>{html.escape(piece)}</mark>" if piece.lower() == truth.lower() else html.escape(piece))
        + f" {chance:.0%}"
        for piece, chance in guesses
    )
    return (
        f'<div class="fill">{html.escape(before)}<mark>{html.escape(truth)}</mark>{html.escape(after)}'
        f"<br><small>says: {shown}</small></div>"
    )
