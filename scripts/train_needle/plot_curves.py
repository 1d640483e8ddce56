#!/usr/bin/env python3
"""Draw how the needle model learnt: scripts/train_needle/plot_curves.py curves.json -o curves.svg

One line a kind of answer: the share of answer tokens that were right in the training texts of a stage's
own length, over the seconds of training. Grey lines part the stages.
"""

import argparse
import json
import pathlib

WIDTH, HEIGHT, LEFT, TOP, PLOT_WIDTH, PLOT_HEIGHT = 760, 340, 46, 24, 580, 270
COLORS = {"code": "#1f6fb4", "two_word": "#5aa9d6", "list": "#2a8a4a", "trace": "#7a5ab0", "soft": "#c8871a",
          "lives": "#c0392b", "works": "#e27a9b", "stated": "#8a5a3a", "office": "#40b0a0",
          "common": "#555555", "frequent": "#a0a040"}


def stage_rows(curve: list[dict]) -> list[dict]:
    """One row a report: the length that most of its steps had, which is the stage's."""
    reports: dict[float, dict] = {}
    for row in curve:
        best = reports.get(row["seconds"])
        if best is None or row["steps"] > best["steps"]:
            reports[row["seconds"]] = row
    return [reports[seconds] for seconds in sorted(reports)]


def draw(rows: list[dict]) -> str:
    end = rows[-1]["seconds"]

    def x_of(seconds: float) -> float:
        return LEFT + PLOT_WIDTH * seconds / end

    def y_of(share: float) -> float:
        return TOP + PLOT_HEIGHT * (1 - share)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
             f'font-size="11"><rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = y_of(share)
        parts.append(f'<path d="M{LEFT} {y:.1f}h{PLOT_WIDTH}" stroke="#e4e4e4"/>'
                     f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{share:g}</text>')
    for before, row in zip([None, *rows], rows):
        if before is None or row["length"] != before["length"]:
            x = x_of(before["seconds"] if before else 0)
            parts.append(f'<path d="M{x:.1f} {TOP}v{PLOT_HEIGHT}" stroke="#bbb"/>'
                         f'<text x="{x + 3:.1f}" y="{TOP - 6}">{row["length"]}</text>')
    for seconds in range(0, int(end) + 1, 60):
        parts.append(f'<text x="{x_of(seconds):.1f}" y="{TOP + PLOT_HEIGHT + 16}" text-anchor="middle">{seconds} s</text>')
    for i, (kind, color) in enumerate(COLORS.items()):
        points = " ".join(f'{x_of(r["seconds"]):.1f},{y_of(r["token_accuracy"][kind]):.1f}'
                          for r in rows if kind in r["token_accuracy"])
        y = TOP + 12 + 18 * i
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.6"/>'
                     f'<path d="M{LEFT + PLOT_WIDTH + 16} {y - 4}h18" stroke="{color}" stroke-width="3"/>'
                     f'<text x="{LEFT + PLOT_WIDTH + 40}" y="{y}">{kind}</text>')
    return "\n".join(parts) + "\n</svg>\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", type=pathlib.Path, help="curves.json, written by train.py")
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    args = parser.parse_args()
    args.output.write_text(draw(stage_rows(json.loads(args.curves.read_text())["curve"])))


if __name__ == "__main__":
    main()
