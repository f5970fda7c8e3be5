#!/usr/bin/python3
"""Draws recordings of terminals (asciicast, version 2) as SVG.

    screens.py RECORDINGS DRAWINGS

Each NAME.cast of the first directory becomes NAME.svg in the second: all that stands
there at the end. demo.cast becomes an animation; without one, its end is shown. It runs
faster than the recording, which is of an emulated machine. pyte is the terminal.
"""

import json
import pathlib
import sys
from html import escape

import pyte

CELL, LINE, SIZE, EDGE = 8.4, 19, 14, 18
FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'Liberation Mono','DejaVu Sans Mono',monospace"
PAPER, FRAME, INK = "#0d1117", "#30363d", "#d1d7e0"
COLOURS = {"green": "#57ab5a", "brown": "#c69026", "red": "#f47067"}
PROMPT = "#768390"

# Of the animation: seconds of the recording in one of it, and the least and the most
# that anything stands there.
SPEED, LEAST, MOST, LAST = 12, 0.12, 1.6, 6


def events(file):
    head, *lines = file.read_text().splitlines()
    return json.loads(head), [json.loads(line) for line in lines]


def style(cell):
    return COLOURS.get(cell.fg, ""), cell.bold


def row(cells, cols):
    """A line of the screen as SVG, empty where nothing stands there."""
    text = "".join(cells[x].data for x in range(cols)).rstrip()
    if not text:
        return ""
    prompt = text.startswith("$ ")
    parts, begin = [], 0
    for x in range(1, len(text) + 1):
        if x < len(text) and style(cells[x]) == style(cells[begin]):
            continue
        fill, bold = style(cells[begin])
        part = escape(text[begin:x], quote=False)
        if prompt and begin == 0:
            part = f'<tspan fill="{PROMPT}">$</tspan>' + part[1:]
        if fill or bold:
            attributes = (f' fill="{fill}"' if fill else "") + (' font-weight="bold"' if bold else "")
            part = f"<tspan{attributes}>{part}</tspan>"
        parts.append(part)
        begin = x
    # The width holds columns together in whatever font it is shown.
    return f'textLength="{len(text) * CELL:.1f}">' + "".join(parts)


def page(cols, rows, title, style, body):
    width, height = cols * CELL + 2 * EDGE, rows * LINE + 2 * EDGE
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}" role="img">
<title>{escape(title)}</title>
<style>text{{font:{SIZE}px {FONT};fill:{INK};white-space:pre}}{style}</style>
<rect x=".5" y=".5" width="{width - 1:.0f}" height="{height - 1}" rx="8" fill="{PAPER}" stroke="{FRAME}"/>
{body}</svg>
"""


def at(y):
    return f'x="{EDGE}" y="{EDGE + y * LINE + SIZE}"'


def still(head, recorded):
    screen = pyte.Screen(head["width"], 400)
    stream = pyte.Stream(screen)
    for _, _, text in recorded:
        stream.feed(text)
    rows = [row(screen.buffer[y], head["width"]) for y in range(400)]
    while rows and not rows[-1]:
        rows.pop()
    body = "".join(f'<text xml:space="preserve" {at(y)} {r}</text>\n' for y, r in enumerate(rows) if r)
    return page(head["width"], len(rows), screen.display[0].strip("$ "), "", body)


def animation(head, recorded):
    cols, rows = head["width"], head["height"]
    screen = pyte.Screen(cols, rows)
    stream = pyte.Stream(screen)
    frames, now, shown = [], 0.0, 0.0  # what stands there, from when
    for i, (when, _, text) in enumerate(recorded):
        stream.feed(text)
        until = recorded[i + 1][0] if i + 1 < len(recorded) else when
        stands = (until - when) / SPEED
        if text.startswith("$ "):
            stands = 1.2  # somebody reads what was typed
        shown += stands
        if shown < LEAST and i + 1 < len(recorded):
            continue  # too short to be seen
        frames.append((now, [row(screen.buffer[y], cols) for y in range(rows)]))
        now += min(shown, MOST)
        shown = 0.0
    total = now + LAST
    lines = {}  # each line once
    for _, frame in frames:
        for r in frame:
            if r:
                lines.setdefault(r, f"l{len(lines)}")
    body = "<defs>\n" + "".join(f'<text id="{k}" xml:space="preserve" x="{EDGE}" y="{EDGE + SIZE}" {r}</text>\n' for r, k in lines.items()) + "</defs>\n"
    rules = "g{visibility:hidden}g:last-of-type{visibility:visible}@media (prefers-reduced-motion:no-preference){g{animation:%.1fs step-end infinite}" % total
    for i, (begin, frame) in enumerate(frames):
        end = frames[i + 1][0] if i + 1 < len(frames) else total
        first, last = 100 * begin / total, 100 * end / total
        rules += f"@keyframes f{i}{{0%{{visibility:{'visible' if i == 0 else 'hidden'}}}{first:.2f}%{{visibility:visible}}{min(last, 100):.2f}%{{visibility:{'visible' if i + 1 == len(frames) else 'hidden'}}}}}"
        rules += f"#f{i}{{animation-name:f{i}}}"
        body += f'<g id="f{i}">' + "".join(f'<use href="#{lines[r]}" y="{y * LINE}"/>' for y, r in enumerate(frame) if r) + "</g>\n"
    return page(cols, rows, "kbnode checks a server, makes it a node, and runs a job on it (faster than it was)", rules + "}", body)


def main():
    recordings, drawings = map(pathlib.Path, sys.argv[1:])
    drawings.mkdir(parents=True, exist_ok=True)
    for file in sorted(recordings.glob("*.cast")):
        head, recorded = events(file)
        svg = animation(head, recorded) if file.stem == "demo" else still(head, recorded)
        (drawings / f"{file.stem}.svg").write_text(svg)
        print(f"{file.stem}.svg: {len(svg.encode()) / 1000:.1f} kB")
    # What was drawn is not stale.
    stale = drawings / "stale.txt"
    drawn = {file.stem for file in recordings.glob("*.cast")}
    stale.write_text("".join(line for line in stale.read_text().splitlines(True) if line.strip() not in drawn))


main()
