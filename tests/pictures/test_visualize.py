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
from checkpoints.content import read_checkpoint
from checkpoints.run import Run
from configs.schema import Learnable, Sinusoidal
from models.positional_encodings.sinusoidal import sinusoid_table
from pictures.arguments import PICTURES
from pictures.arrays import principal_axes
from pictures.attention_maps import attention_figures, attention_maps, draw_attention, target_tokens
from pictures.maps import map_frames
from pictures.positions import draw as draw_scheme
from pictures.schemes import trained_subject
from translation.loading import load_run
from translation.translator import Translator
from utils.errors import UserError

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
    rows = next(
        [t.get_text() for t in axes.get_yticklabels()] for axes in maps if axes.get_yticklabels()
    )
    columns = next(
        [t.get_text() for t in axes.get_xticklabels()] for axes in maps if axes.get_xticklabels()
    )
    return rows, columns


def images(figure) -> list[np.ndarray]:
    return [
        np.asarray(a.images[0].get_array())
        for a in figure.axes
        if a.images and a.get_label() != "<colorbar>"
    ]


# ---------------------------------------------------------------------------------------- attention


def test_attention_prints_the_translation_and_writes_into_the_run(
    trained_run: Path, tmp_path: Path
) -> None:
    run = copy_run(trained_run, tmp_path)
    done = run_script(
        "visualize.py", "attention", "--runs_dir", tmp_path, "--src_text", "Le chat dort."
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    translation, *paths = done.stdout.splitlines()
    assert translation
    folder = run / "results/attention"
    assert paths == [
        str(folder / f"attention_{kind}.png") for kind in ("encoder", "decoder", "cross")
    ]
    assert all(Path(path).read_bytes().startswith(MAGIC["png"]) for path in paths)


@pytest.mark.parametrize("suffix", MAGIC)
def test_chosen_maps_come_in_the_chosen_format(
    draw: Scripts, trained_run: Path, tmp_path: Path, suffix: str
) -> None:
    args = (
        "--src_text",
        "Oui.",
        "--tgt_text",
        "Yes.",
        "--kind",
        "cross",
        "--layers",
        "2",
        "--heads",
        "1,2",
    )
    ended = draw(
        "attention",
        "--model_path",
        trained_run,
        *args,
        "--format",
        suffix,
        "--output_dir",
        tmp_path,
    )
    path = tmp_path / f"attention_cross.{suffix}"
    assert ended == (0, f"Yes.\n{path}\n", "")
    assert path.read_bytes().startswith(MAGIC[suffix])


def test_rows_are_read_tokens_in_self_attention_and_predicted_tokens_in_cross_attention(
    translator: Translator,
) -> None:
    source = translator.encode(["Le chat dort."])[0]
    target = target_tokens(translator, source, "The cat\u00a0sleeps.")
    assert target == translator.tokenizer.encode_tgt("The cat sleeps.")
    figures = attention_figures(translator, source, target)
    src, tgt = (
        [piece.replace("▁", "_") for piece in pieces]
        for pieces in (
            translator.tokenizer.src_pieces(source),
            translator.tokenizer.tgt_pieces(target),
        )
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
        np.testing.assert_allclose(
            drawn[0].sum(axis=1), 1, atol=1e-5
        )  # no padding column takes a share
    assert not np.triu(images(figures["decoder"])[0], 1).any()


def test_labels_keep_apart_in_the_smallest_picture(translator: Translator) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    eos = translator.tokenizer.eos_id
    figures = attention_figures(
        translator, [eos], [eos], layers=[1], heads=[1], about=" (a run, epoch 3)"
    )
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
        (
            ["--kind", "cross", "--layers", "1,9"],
            "there is no decoder layer 9: it has decoder layers 1 to 2",
        ),
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
def test_a_mistake_gets_one_line(
    draw: Scripts, trained_run: Path, args: list[str], said: str
) -> None:
    ended = draw(
        "attention", "--model_path", trained_run, "--src_text", "Oui.", "--tgt_text", "Yes.", *args
    )
    assert said in ended.error()


def test_a_model_that_cannot_show_its_attention_says_so(
    draw: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    run = untrained_run(trained_run, tmp_path, position=Sinusoidal(), backend="torch", dropout=0.0)
    said = draw("attention", "--model_path", run, "--src_text", "Oui.").error()
    assert 'backend "torch" does not show its attention' in said


def test_two_runs_stand_side_by_side_each_with_its_own_tokens(
    draw: Scripts, trained_run: Path, tmp_path: Path, translator: Translator
) -> None:
    other = untrained_run(trained_run, tmp_path, position=Sinusoidal(), n_heads=4)
    text = ("--src_text", "Le chat dort.", "--tgt_text", "The cat sleeps.")
    ended = draw(
        "attention",
        "--model_path",
        trained_run,
        "--compare",
        other,
        *text,
        "--output_dir",
        tmp_path / "out",
    )
    paths = [
        tmp_path / f"out/attention_{kind}_compared.png" for kind in ("encoder", "decoder", "cross")
    ]
    assert ended == (
        0,
        "".join(f"{line}\n" for line in ("The cat sleeps.", "The cat sleeps.", *paths)),
        "",
    )

    source = translator.encode(["Le chat dort."])[0]
    longer = translator.encode(["Le chat noir dort."])[0]
    target = target_tokens(translator, source, "The cat sleeps.")
    mine = attention_maps(translator, source, target, kinds=["cross"], layers=[1], about=" (mine)")
    its = load_run(other, runs_dir="runs").translator(torch.device("cpu"))
    theirs = attention_maps(
        its, longer, target, kinds=["cross"], layers=[1], heads=[2, 3], about=" (theirs)"
    )
    [figure] = draw_attention(mine, theirs).values()
    drawn = images(figure)
    assert [picture.shape for picture in drawn] == [(len(target), len(source))] * 2 + [
        (len(target), len(longer))
    ] * 2
    np.testing.assert_array_equal(drawn[1], mine["cross"].maps[0, 1])
    np.testing.assert_array_equal(drawn[2], theirs["cross"].maps[0, 0])
    wanted = ("--heads", "3", *text)
    said = draw("attention", "--model_path", other, "--compare", trained_run, *wanted).error()
    assert said == "there is no head 3: it has heads 1 to 2"
    assert (
        "nowhere: no such checkpoint"
        in draw("attention", "--model_path", other, "--compare", "nowhere", *text).error()
    )


# --------------------------------------------------------------------------------- position schemes


SCHEME = ["--set", "model.d_model=16", "--set", "model.n_heads=2"]


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (
            "encoding --position rope_half sinusoidal_t2t",
            ["rope_half_cos", "rope_half_sin", "sinusoidal_t2t"],
        ),
        (
            "bias --position alibi",
            [
                f"alibi_{s}_{what}"
                for s in ("encoder", "decoder")
                for what in ("matrices", "curves")
            ],
        ),
        (
            "similarity --position sinusoidal learnable",
            [f"sinusoidal_learnable_{w}" for w in ("by_offset", "matrices")],
        ),
        ("decay", ["sinusoidal_rope"]),
        ("projections --position sinusoidal", ["sinusoidal_curves", "sinusoidal_matrices"]),
        ("rotation", ["rope"]),
        ("embedding_map --position sinusoidal", ["sinusoidal"]),
    ],
)
def test_each_command_draws_schemes_without_a_run(
    draw: Scripts, tmp_path: Path, command: str, names: list[str]
) -> None:
    name, *args = command.split()
    ended = draw(
        name, *args, *SCHEME, "--positions", "12", "--runs_dir", tmp_path, "--format", "svg"
    )
    paths = [tmp_path / f"pictures/{name}_{picture}.svg" for picture in names]
    assert ended == (0, "".join(f"{path}\n" for path in paths), "")
    assert all(path.read_bytes().startswith(MAGIC["svg"]) for path in paths)


def test_a_run_is_drawn_into_its_own_folder_with_its_own_projections(
    draw: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    run = untrained_run(trained_run, tmp_path, position=Sinusoidal())
    ended = draw("projections", "--runs_dir", tmp_path, "--positions", "12", "--format", "svg")
    folder = run / "results/projections"
    paths = [folder / f"projections_sinusoidal_{what}.svg" for what in ("curves", "matrices")]
    assert ended == (0, "".join(f"{path}\n" for path in paths), "")
    loaded = load_run(run, runs_dir="runs")
    made = trained_subject(loaded)
    figures = dict(draw_scheme("projections", [made], 12, loaded.model.encoder))
    table = sinusoid_table(torch.arange(12), 32, dtype=torch.float64).numpy()
    joint = loaded.model.encoder.layers[0].self_attention.qkv_proj.weight.detach().double().numpy()
    q, k = table @ joint[:32].T, table @ joint[32:64].T
    expected = q[:, 16:] @ k[:, 16:].T  # head 2 of 2
    np.testing.assert_allclose(
        images(figures["sinusoidal_matrices"])[-1], expected / np.abs(expected).max(), atol=1e-6
    )
    assert run.name in figures["sinusoidal_curves"].get_suptitle()


def test_the_learned_tables_of_both_sides_are_drawn(
    draw: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    run = untrained_run(trained_run, tmp_path, position=Learnable(max_positions=100))
    ended = draw("encoding", "--model_path", run)
    paths = [
        run / f"results/encoding/encoding_learnable_{side}.png" for side in ("source", "target")
    ]
    assert ended == (0, "".join(f"{path}\n" for path in paths), "")
    loaded = load_run(run, runs_dir="runs")
    drawn = {
        name: images(figure)[0]
        for name, figure in draw_scheme("encoding", [trained_subject(loaded)], None, None)
    }
    table = loaded.model.scheme.input("target").table.weight.detach().numpy()
    assert drawn["learnable_source"].shape == (100, loaded.config.model.d_model)
    np.testing.assert_array_equal(drawn["learnable_target"], table)
    said = draw("encoding", "--model_path", run, "--positions", "101").error()
    assert said == "--positions 101: the learnable encoding has 100"


def test_a_scheme_is_drawn_from_a_config(draw: Scripts, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from configs.schema import *\nconfig = Config(model=ModelConfig(position=Learnable(), d_model=64))\n"
    )
    args = ("--config", file, "--runs_dir", tmp_path, "--format", "svg")
    folder = tmp_path / "pictures/mine"
    assert draw("encoding", *args) == (
        0,
        f"{folder}/encoding_learnable_source.svg\n{folder}/encoding_learnable_target.svg\n",
        "",
    )
    assert "64 dimensions" in (folder / "encoding_learnable_source.svg").read_text()
    assert "learnable, untrained" in (folder / "encoding_learnable_source.svg").read_text()
    # A scheme in the config's model; and a config whose scheme has a name of its own.
    assert (
        draw("encoding", *args, "--position", "sinusoidal").out
        == f"{folder}/encoding_sinusoidal.svg\n"
    )
    named = draw(
        "encoding",
        *args,
        "--set",
        "model.position=sinusoidal",
        "--set",
        "model.position.layout=half",
    )
    assert named.out == f"{folder}/encoding_sinusoidal_half.svg\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ["encoding", "--config", "x.py", "--model_path", "x"],
            "--config and --model_path: give one of them",
        ),
        (
            ["bias", "--position", "alibi", "--model_path", "x"],
            "--position and --model_path: give one of them",
        ),
        (
            ["bias", "--set", "model.n_heads=4", "--model_path", "x"],
            "--set and --model_path: give one of them",
        ),
        (["bias", "--set", "model.n_heads=4"], "--set model.n_heads=4: a run is as it was trained"),
        (["bias", "--position", "aliby"], "aliby"),
        (["bias", "--position", "rope"], "'rope' adds no bias to the logits; choose one that does"),
        (
            ["bias", "--position", "cope"],
            "depends on content; look at a trained run with `visualize.py attention",
        ),
        (["encoding", "--position", "none"], "'none' adds nothing to embeddings and turns nothing"),
        (["rotation", "--position", "t5"], "'t5' turns no queries and keys; choose one that does"),
        (
            ["similarity", "--position", "alibi"],
            "'alibi' adds nothing to embeddings, so there is no table",
        ),
        (["decay", "--positions", "0"], "argument --positions: '0': an integer >= 1"),
        (
            ["encoding", "--position", "learnable", "--positions", "513"],
            "--positions 513: the learnable encoding has 512",
        ),
        (
            ["embedding_map", "--gif", "--position", "learnable"],
            "--gif draws the checkpoints of a run",
        ),
        (
            ["embedding_map", "--position", "sinusoidal", "--positions", "2"],
            "--positions 2: a map in the plane needs 3",
        ),
        (["decay", "--output_dir", "LICENSE"], "cannot write 'LICENSE/decay_sinusoidal_rope.png'"),
        (["rotation", "--gif"], "unrecognized arguments: --gif"),
    ],
)
def test_a_mistake_about_schemes_gets_one_line(draw: Scripts, args: list[str], said: str) -> None:
    assert said in draw(*args).error()


@pytest.mark.parametrize("command", ["attention", *PICTURES])
def test_the_help_says_what_each_picture_shows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit):
        visualize.main([command, "--help"])
    out = capsys.readouterr().out
    assert "\nDraws " in out
    if command in PICTURES:
        assert f"Draws {PICTURES[command][0]}." in out
        assert "randomized_rope" in out


def test_asking_for_help_loads_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys, visualize\n"
        "visualize.parse_args(['decay'])\n"
        "print([name for name in ('torch', 'matplotlib', 'sklearn') if name in sys.modules])"
    )
    assert run_script("-c", code).stdout == "[]\n"


# ---------------------------------------------------------------------------------------------- GIF


def save_state(run: Path, name: str, epoch: int, moved: float) -> None:
    """Another checkpoint of the run, with tables that stand elsewhere."""
    checkpoints = Run(run).checkpoints
    payload = read_checkpoint(checkpoints / "best_checkpoint_1_loss=-1.0000.pt")
    payload["model"] = {
        k: v + moved * (v != 0) if "scheme" in k else v for k, v in payload["model"].items()
    }
    payload["progress"] = {"epoch": epoch, "step": 10 * epoch}
    torch.save(payload, checkpoints / name)


def test_frames_follow_the_checkpoints_of_a_run_on_common_axes(
    trained_run: Path, tmp_path: Path
) -> None:
    made = Run(untrained_run(trained_run, tmp_path, position=Learnable(max_positions=100)))
    for epoch in (5, 6, 7):
        save_state(made.path, f"regular_checkpoint_{epoch}.pt", epoch, moved=0.1 * epoch)
    save_state(
        made.path, "best_checkpoint_6_loss=-0.5000.pt", 6, moved=0.6
    )  # the same state twice: one frame
    frames = map_frames(made, 12)
    steps = [frame.get_suptitle().split("update ")[1] for frame in frames]
    first = read_checkpoint(made.checkpoints / "best_checkpoint_1_loss=-1.0000.pt")
    assert steps == [str(step) for step in sorted([first["progress"]["step"], 50, 60, 70])]
    assert len({tuple(frame.get_size_inches()) for frame in frames}) == 1
    assert len({frame.axes[side].get_xlim() for frame in frames for side in (0, 1)}) == 1

    weights = read_checkpoint(made.checkpoints / "regular_checkpoint_7.pt")["model"]
    last = weights["scheme.source.table.weight"][:12].double().numpy()
    mean, axes, _ = principal_axes(last)
    at = {step: frame.axes[0].collections[0].get_offsets() for step, frame in zip(steps, frames)}
    np.testing.assert_allclose(at["70"], (last - mean) @ axes.T, atol=1e-12)
    np.testing.assert_allclose(
        at["50"], (last - 0.2 - mean) @ axes.T, atol=1e-6
    )  # the directions of the last


def test_fixed_vectors_make_no_animation(trained_run: Path, tmp_path: Path) -> None:
    made = Run(untrained_run(trained_run, tmp_path, position=Sinusoidal()))
    with pytest.raises(
        UserError, match="vectors of 'sinusoidal' are fixed, so no checkpoint moves them"
    ):
        map_frames(made)


def test_the_animation_lies_beside_the_map(
    draw: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    from PIL import Image

    run = untrained_run(trained_run, tmp_path, position=Learnable(max_positions=100))
    save_state(run, "regular_checkpoint_5.pt", 5, moved=0.5)
    ended = draw(
        "embedding_map",
        "--model_path",
        run,
        "--gif",
        "--positions",
        "8",
        "--output_dir",
        tmp_path / "out",
    )
    paths = [tmp_path / f"out/embedding_map_learnable.{suffix}" for suffix in ("png", "gif")]
    assert ended == (0, "".join(f"{path}\n" for path in paths), "")
    with Image.open(paths[1]) as image:
        assert image.n_frames == 2
