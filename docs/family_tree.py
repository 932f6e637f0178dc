"""Draws the figure of docs/family_tree.md: `python docs/family_tree.py` in the checkout's root."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path.cwd()))

from matplotlib.figure import Figure

from pictures.panels import save_figure

# The centre of each box, in columns and rows.
BOXES = {
    "LieRE, ComRoPE on a line;\nmultiplicative GRAPE": (0.1, 0.3),
    "RoPE learned": (1.6, 0.3),
    "clipped RoPE": (0, 1.2),
    "linear, NTK, YaRN,\ndynamic NTK": (0, 2.0),
    "Selective RoPE": (0, 2.8),
    "RePo": (0, 3.5),
    "p-RoPE": (0, 4.2),
    "RoPE": (1.9, 2.4),
    "additive GRAPE": (3.6, 0.3),
    "CABLE": (2.6, 0.9),
    "FoX": (3.6, 1.5),
    "KERPLE power": (5.4, 1.5),
    "ALiBi": (4.5, 2.6),
    "DAPE": (5.6, 2.6),
    "none": (3.0, 4.2),
    "TUPE": (4.8, 4.2),
    "SHAPE": (0, 5.6),
    "sinusoidal,\nlearnable": (1.6, 5.6),
    "SSMax": (3.2, 5.1),
    "interleaved": (3.2, 5.6),
    "randomized": (3.2, 6.1),
    "any scheme": (5.2, 5.6),
}
# From the general to the special: what is set.
ARROWS = [
    ("LieRE, ComRoPE on a line;\nmultiplicative GRAPE", "RoPE learned", "axes"),
    ("RoPE learned", "RoPE", "θ of the paper"),
    ("clipped RoPE", "RoPE", "c = 0"),
    ("linear, NTK, YaRN,\ndynamic NTK", "RoPE", "s = 1; T ≤ L"),
    ("Selective RoPE", "RoPE", "constant steps"),
    ("RePo", "RoPE", "z = t"),
    ("p-RoPE", "RoPE", "p = 1"),
    ("p-RoPE", "none", "p = 0"),
    ("additive GRAPE", "FoX", "ln f"),
    ("additive GRAPE", "ALiBi", "−m"),
    ("CABLE", "FoX", "gate of −z"),
    ("FoX", "ALiBi", "f = exp(−m)"),
    ("FoX", "none", "f = 1"),
    ("KERPLE power", "ALiBi", "p = 1, a = m"),
    ("DAPE", "ALiBi", "f = 0"),
    ("TUPE", "none", "U = 0"),
    ("SHAPE", "sinusoidal,\nlearnable", "evaluation"),
    ("SSMax", "any scheme", "s ln n = 1"),
    ("interleaved", "any scheme", "both the same"),
    ("randomized", "any scheme", "N = T"),
]


def main() -> None:
    figure = Figure(figsize=(10, 6), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlim=(-0.7, 6.0), ylim=(6.4, -0.1))
    axes.axis("off")
    boxes = {}
    for name, (x, y) in BOXES.items():
        style = {"boxstyle": "round,pad=0.35", "facecolor": "#eef3fa", "edgecolor": "#3a5f95"}
        boxes[name] = axes.text(x, y, name, ha="center", va="center", fontsize=9, bbox=style)
    for general, special, setting in ARROWS:
        (x, y), (to_x, to_y) = BOXES[general], BOXES[special]
        ends = {
            "patchA": boxes[general].get_bbox_patch(),
            "patchB": boxes[special].get_bbox_patch(),
        }
        arrow = {"arrowstyle": "-|>", "color": "#777777", "shrinkA": 0, "shrinkB": 2, **ends}
        axes.annotate("", (to_x, to_y), (x, y), arrowprops=arrow)
        place = (x + 0.47 * (to_x - x), y + 0.47 * (to_y - y))
        back = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
        axes.text(*place, setting, ha="center", va="center", fontsize=8, style="italic", bbox=back)
    save_figure(figure, Path("assets/family_tree.png"))


if __name__ == "__main__":
    main()
