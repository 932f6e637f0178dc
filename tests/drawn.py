"""What a figure shows, read back from its artists, and whether it can be read."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox


def texts_of(figure: Figure) -> dict[Text, Bbox]:
    """Every visible text with its box in pixels."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw_without_rendering()  # which places everything, in half the time
    hidden = set()  # ticks outside of the axes' limits are kept by matplotlib but not drawn
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            shown = axis._update_ticks()
            others = [tick for tick in axis.majorTicks if tick not in shown]
            hidden |= {label for tick in others for label in (tick.label1, tick.label2)}
    found = [text for text in figure.findobj(Text) if text.get_visible() and text not in hidden]
    return {text: text.get_window_extent(renderer) for text in found if text.get_text().strip()}


def assert_legible(figure: Figure) -> list[str]:
    """Nothing is cut, no texts overlap, and none lies on a picture; all texts."""
    found = texts_of(figure)
    contents = [text.get_text() for text in found]
    boxes = np.array([box.extents for box in found.values()])
    size = figure.get_size_inches() * figure.dpi
    cut = (boxes[:, :2] < 0).any(1) | (boxes[:, 2:] > size).any(1)
    assert not cut.any(), f"cut: {[contents[i] for i in np.flatnonzero(cut)]}"
    areas = np.array([axes.get_window_extent().extents for axes in panels(figure)])
    for others, names in ((boxes, contents), (areas, ["a picture"] * len(areas))):
        low = np.maximum(boxes[:, None, :2], others[None, :, :2])
        clash = (np.minimum(boxes[:, None, 2:], others[None, :, 2:]) - low > 0.5).all(-1)
        if others is boxes:
            clash = np.triu(clash, k=1)
        assert not clash.any(), [(contents[i], names[j]) for i, j in np.argwhere(clash)[:5]]
    return contents


def panels(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.axison and not hasattr(axes, "_colorbar")]


def colour_bars(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if hasattr(axes, "_colorbar")]


def images(figure: Figure) -> list[np.ndarray]:
    """The matrices, NaN where nothing is drawn."""
    drawn = [axes.images[0].get_array() for axes in panels(figure) if axes.images]
    return [np.ma.filled(array.astype(float), np.nan) for array in drawn]


def points(axes: Axes) -> np.ndarray:
    return np.asarray(axes.collections[0].get_offsets())


def titles(figure: Figure) -> list[str]:
    """Of the panels."""
    return [axes.get_title().replace("\n", " ") for axes in panels(figure) if axes.get_title()]


def suptitle(figure: Figure) -> str:
    return figure.get_suptitle().replace("\n", " ")


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def curves(figure: Figure) -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """{title of a panel: {name in the legend, or "": (x, y)}}."""
    names = {}
    if figure.legends:
        colours = [str(line.get_color()) for line in figure.legends[0].get_lines()]
        names = dict(zip(colours, legend(figure)))
    return {
        axes.get_title().replace("\n", " "): {
            names.get(str(line.get_color()), ""): line.get_data() for line in axes.lines
        }
        for axes in panels(figure)
    }
