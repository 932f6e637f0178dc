"""`python visualize.py`: the pictures are there, show the right thing, and a mistake gets one line."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import run_script
from made_runs import Scripts, copy_run, untrained_run

import visualize
from configs.schema import Config, Learnable, ModelConfig, NoPosition, Rope, Sinusoidal
from models.build import build_scheme
from models.positional_encodings.sinusoidal import sinusoid_table
from utils.translation import Translator, load_run
from utils.visuals import attention_figures, encoding_figures, target_tokens

MAGIC = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}


@pytest.fixture
def draw(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Scripts:
    return Scripts(visualize.main, capsys, monkeypatch)


@pytest.fixture(scope="module")
def translator(trained_run: Path) -> Translator:
    return load_run(trained_run, runs_dir="runs").translator(torch.device("cpu"))


def tick_labels(figure) -> tuple[list[str], list[str]]:
    """(rows, columns) of the lower left map."""
    maps = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    rows = next([t.get_text() for t in axes.get_yticklabels()] for axes in maps if axes.get_yticklabels())
    columns = next([t.get_text() for t in axes.get_xticklabels()] for axes in maps if axes.get_xticklabels())
    return rows, columns


def images(figure) -> list[np.ndarray]:
    return [np.asarray(a.images[0].get_array()) for a in figure.axes if a.images and a.get_label() != "<colorbar>"]


# --------------------------------------------------------------------------------------------------------- attention


def test_attention_prints_the_translation_and_writes_into_the_run(trained_run: Path, tmp_path: Path) -> None:
    run = copy_run(trained_run, tmp_path)
    done = run_script("visualize.py", "attention", "--runs_dir", tmp_path, "--src_text", "Le chat dort.")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    translation, *paths = done.stdout.splitlines()
    assert translation
    folder = run / "results/attention"
    assert paths == [str(folder / f"attention_{kind}.png") for kind in ("encoder", "decoder", "cross")]
    assert all(Path(path).read_bytes().startswith(MAGIC["png"]) for path in paths)


@pytest.mark.parametrize("suffix", MAGIC)
def test_chosen_maps_come_in_the_chosen_format(draw: Scripts, trained_run: Path, tmp_path: Path, suffix: str) -> None:
    args = ("--src_text", "Oui.", "--tgt_text", "Yes.", "--kind", "cross", "--layers", "2", "--heads", "1,2")
    ended = draw("attention", "--model_path", trained_run, *args, "--format", suffix, "--output_dir", tmp_path)
    path = tmp_path / f"attention_cross.{suffix}"
    assert ended == (0, f"Yes.\n{path}\n", "")
    assert path.read_bytes().startswith(MAGIC[suffix])


def test_rows_are_read_tokens_in_self_attention_and_predicted_tokens_in_cross_attention(translator: Translator) -> None:
    source = translator.encode(["Le chat dort."])[0]
    target = target_tokens(translator, source, "The cat\u00a0sleeps.")
    assert target == translator.tokenizer.encode_tgt("The cat sleeps.")
    figures = attention_figures(translator, source, target)
    src, tgt = (
        [piece.replace("▁", "_") for piece in pieces]
        for pieces in (translator.tokenizer.src_pieces(source), translator.tokenizer.tgt_pieces(target))
    )
    assert src[-1] == tgt[-1] == "</s>"
    assert tick_labels(figures["encoder"]) == (src, src)
    assert tick_labels(figures["decoder"]) == (["<s>", *tgt[:-1]], ["<s>", *tgt[:-1]])
    assert tick_labels(figures["cross"]) == (tgt, src)
    texts = {kind: {text.get_text() for text in figure.texts} for kind, figure in figures.items()}
    assert "target token predicted (query)" in texts["cross"]
    assert "target token read (query)" in texts["decoder"]


def test_the_drawn_weights_are_those_of_the_chosen_layers_and_heads(translator: Translator) -> None:
    source = translator.encode(["Le chat dort."])[0]
    target = target_tokens(translator, source, None)
    maps = translator.attention_maps(source, [translator.tokenizer.bos_id, *target[:-1]])
    figures = attention_figures(translator, source, target, layers=[2], heads=[2, 1])
    for kind, figure in figures.items():
        drawn = images(figure)
        assert len(drawn) == 2
        np.testing.assert_array_equal(drawn[0], maps[kind][1, 1])
        np.testing.assert_array_equal(drawn[1], maps[kind][1, 0])
        np.testing.assert_allclose(drawn[0].sum(axis=1), 1, atol=1e-5)  # no padding column takes a share
    assert not np.triu(images(figures["decoder"])[0], 1).any()


def test_labels_keep_apart_in_the_smallest_picture(translator: Translator) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    eos = translator.tokenizer.eos_id
    figures = attention_figures(translator, [eos], [eos], layers=[1], heads=[1], about=" (a run, epoch 3)")
    for figure in figures.values():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        boxes = [text.get_window_extent(canvas.get_renderer()) for text in figure.texts]
        assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
        assert all(box.x0 >= 0 and box.y0 >= 0 and box.y1 <= figure.bbox.y1 for box in boxes)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--layers", "3"], "there is no encoder layer 3: it has encoder layers 1 to 2"),
        (["--kind", "cross", "--layers", "1,9"], "there is no decoder layer 9: it has decoder layers 1 to 2"),
        (["--heads", "3"], "there is no head 3: it has heads 1 to 2"),
        (["--heads", "0"], "argument --heads: '0': an integer >= 1"),
        (["--layers", "1-2"], "argument --layers: '1-2': an integer >= 1"),
        (["--kind", "self"], "argument --kind: invalid choice: 'self'"),
        (["--format", "gif"], "argument --format: invalid choice: 'gif'"),
        (["--flag"], "unrecognized arguments: --flag"),
        (["--src_text", " "], "there is nothing to look at"),
        (["--src_text", "caf\udce9"], "not valid Unicode"),
        (["--output_dir", "LICENSE"], "cannot write 'LICENSE/attention_encoder.png'"),
        (["--model_path", "nowhere"], "nowhere: no such checkpoint or run folder"),
    ],
)
def test_a_mistake_gets_one_line(draw: Scripts, trained_run: Path, args: list[str], said: str) -> None:
    ended = draw("attention", "--model_path", trained_run, "--src_text", "Oui.", "--tgt_text", "Yes.", *args)
    assert said in ended.error()


def test_a_model_that_cannot_show_its_attention_says_so(draw: Scripts, trained_run: Path, tmp_path: Path) -> None:
    run = untrained_run(trained_run, tmp_path, position=Sinusoidal(), backend="torch", dropout=0.0)
    said = draw("attention", "--model_path", run, "--src_text", "Oui.").error()
    assert 'backend "torch" does not show its attention' in said


# ---------------------------------------------------------------------------------------------------------- encoding


def figures_of(config: Config, **options) -> dict[str, np.ndarray]:
    scheme = build_scheme(config.model)
    return {name: images(figure)[0] for name, figure in encoding_figures(scheme, config, **options)}


def test_the_sinusoids_are_drawn_as_they_are() -> None:
    config = Config(model=ModelConfig(position=Sinusoidal(base=500.0), d_model=16, n_heads=2))
    drawn = figures_of(config)
    table = sinusoid_table(torch.arange(128), 16, base=500.0, dtype=torch.float32).numpy()
    assert drawn.keys() == {"sinusoidal"}
    np.testing.assert_array_equal(drawn["sinusoidal"], table)


@pytest.mark.parametrize("form", ["real", "complex"])
def test_rope_is_drawn_as_cosine_and_sine_of_its_angles(form) -> None:
    model = ModelConfig(position=Rope(form=form, base=100.0), d_model=16, n_heads=2)
    drawn = figures_of(Config(model=model), n_positions=40)
    angles = np.arange(40)[:, None] * 100.0 ** (-np.arange(4) / 4)
    np.testing.assert_allclose(drawn["rope_cos"], np.cos(angles), atol=1e-5)
    np.testing.assert_allclose(drawn["rope_sin"], np.sin(angles), atol=1e-5)

    whole = ModelConfig(position=Rope(form=form, base=100.0, rope_dim="model"), d_model=16, n_heads=2)
    angles = np.arange(40)[:, None] * 100.0 ** (-np.arange(8) / 8)
    np.testing.assert_allclose(figures_of(Config(model=whole), n_positions=40)["rope_cos"], np.cos(angles), atol=1e-5)


def test_the_learned_tables_of_both_sides_are_drawn(draw: Scripts, trained_run: Path, tmp_path: Path) -> None:
    run = untrained_run(trained_run, tmp_path, position=Learnable(max_positions=100))
    ended = draw("encoding", "--model_path", run)
    paths = [run / f"results/encoding/encoding_learnable_{side}.png" for side in ("source", "target")]
    assert ended == (0, "".join(f"{path}\n" for path in paths), "")
    loaded = load_run(run, runs_dir="runs")
    scheme = loaded.model.scheme
    drawn = {name: images(figure)[0] for name, figure in encoding_figures(scheme, loaded.config)}
    assert drawn["learnable_source"].shape == (100, loaded.config.model.d_model)
    np.testing.assert_array_equal(drawn["learnable_target"], scheme.target.table.weight.detach().numpy())
    assert (
        "--positions 101: the learnable encoding has 100"
        in draw("encoding", "--model_path", run, "--positions", "101").error()
    )


def test_an_encoding_is_drawn_from_a_config_alone(draw: Scripts, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from configs.schema import Config\nconfig = Config()\n")
    ended = draw("encoding", "--config", file, "--runs_dir", tmp_path, "--format", "svg")
    assert ended == (0, f"{tmp_path}/mine_encoding/encoding_sinusoidal.svg\n", "")

    def said(position: str, *args: str) -> str:
        file.write_text(f"from configs.schema import *\nconfig = Config(model=ModelConfig(position={position}))\n")
        return draw("encoding", "--config", file, *args).error()

    assert "the learnable encoding is trained: give the run, --model_path RUN" in said("Learnable()")
    assert "'none' adds nothing to embeddings and turns nothing" in said("NoPosition()")
    assert "--config and --model_path: give one of them" in said("Rope()", "--model_path", "x")


def test_no_position_leaves_nothing_to_draw() -> None:
    from configs.errors import UserError

    with pytest.raises(UserError, match="nothing to draw"):
        figures_of(Config(model=ModelConfig(position=NoPosition())))
