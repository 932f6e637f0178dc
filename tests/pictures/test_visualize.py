"""`python visualize.py`: the pictures are there, and a mistake gets one line."""

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import run_script
from drawn import images, points
from made_runs import Scripts, copy_run, scripted, untrained_run

import visualize
from checkpoints.content import read_checkpoint
from checkpoints.run import Run
from configs.schema import Learnable, Sinusoidal
from pictures.maps import map_frames, principal_axes
from pictures.schemes import trained_scheme
from translation.loading import load_run
from utils.errors import UserError
from visualize import PICTURES

pytestmark = pytest.mark.slow

KINDS = ("encoder", "decoder", "cross")
SENTENCE = ("--src_text", "Oui.", "--tgt_text", "Yes.")
SMALL = ("--set", "model.d_model=16", "--set", "model.n_heads=2", "--positions", "12")


draw = scripted(visualize.main)


@pytest.fixture
def sinusoidal_run(trained_run: Path, tmp_path: Path) -> Path:
    """The newest of its folder."""
    return untrained_run(trained_run, tmp_path, position=Sinusoidal(), n_heads=4)


@pytest.fixture
def learnable_run(trained_run: Path, tmp_path: Path) -> Path:
    return untrained_run(trained_run, tmp_path, position=Learnable(max_positions=100))


def said(*lines: str | Path, newest: Path | None = None) -> tuple[int, str, str]:
    """A script that ended well with these lines, and that names the run where none was named."""
    named = "" if newest is None else f"run: {newest}, the newest\n"
    return 0, "".join(f"{line}\n" for line in lines), named


# ---------------------------------------------------------------------------------------- attention


def test_attention_prints_the_translation_and_writes_into_the_newest_run(
    draw: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    folder = copy_run(trained_run, tmp_path) / "results/attention"
    ended = draw("attention", "--runs_dir", tmp_path, "--src_text", "Le chat dort.")
    translation, *paths = ended.out.splitlines()
    assert (ended.code, ended.err) == (0, f"run: {folder.parents[1]}, the newest\n")
    assert translation
    assert paths == [str(folder / f"attention_{kind}.png") for kind in KINDS]
    assert all(Path(path).read_bytes().startswith(b"\x89PNG") for path in paths)


def test_chosen_maps_come_in_the_chosen_format(
    draw: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    chosen = ("--kind", "cross", "--layers", "2", "--heads", "1,2", "--format", "svg")
    where = ("--model_path", trained_run, "--output_dir", tmp_path)
    path = tmp_path / "attention_cross.svg"
    assert draw("attention", *where, *SENTENCE, *chosen) == said("Yes.", path)
    svg = path.read_text()
    assert all(f"<!-- {text} -->" in svg for text in ("layer 2", "head 1", "head 2"))
    assert "<!-- layer 1 -->" not in svg
    assert f"({trained_run.name}, epoch 2)" in svg.replace("\n", " ")


def test_two_runs_stand_side_by_side(
    draw: Scripts, trained_run: Path, sinusoidal_run: Path, tmp_path: Path
) -> None:
    both = ("attention", "--model_path", trained_run, "--compare", sinusoidal_run)
    how = ("--kind", "encoder", "--output_dir", tmp_path / "out", "--format", "svg")
    path = tmp_path / "out/attention_encoder_compared.svg"
    assert draw(*both, *SENTENCE, *how) == said("Yes.", "Yes.", path)
    svg = path.read_text()
    assert svg.count("<!-- head 2 -->") == 2
    assert svg.count("<!-- head 3 -->") == 1
    # Each of the two is asked for what it lacks.
    assert draw(*both, *SENTENCE, "--heads", "3").error() == (
        f"there is no head 3 ({trained_run.name}, epoch 2): it has heads 1 to 2"
    )
    other = ("attention", "--model_path", sinusoidal_run, "--compare")
    assert "no head 3" in draw(*other, trained_run, *SENTENCE, "--heads", "3").error()
    assert "nowhere: no such checkpoint" in draw(*other, "nowhere", *SENTENCE).error()


def test_a_model_that_cannot_show_its_attention_says_so(
    draw: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    run = untrained_run(trained_run, tmp_path, position=Sinusoidal(), backend="torch", dropout=0.0)
    error = draw("attention", "--model_path", run, "--src_text", "Oui.").error()
    assert 'backend "torch" does not show its attention' in error


# --------------------------------------------------------------------------------- position schemes


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("rotation --position rope:base=500", "rotation_rope_base_500"),
        ("rotation", "rotation_rope"),
        ("decay", "decay_sinusoidal_rope"),
        ("ideas", "ideas_sinusoidal"),
        ("permutation", "permutation_none_sinusoidal_rope"),
    ],
)
def test_a_command_draws_schemes_without_a_run(
    draw: Scripts, tmp_path: Path, command: str, name: str
) -> None:
    ended = draw(*command.split(), *SMALL, "--runs_dir", tmp_path, "--format", "svg")
    path = tmp_path / f"pictures/{name}.svg"
    assert ended == said(path)
    assert path.read_bytes().startswith(b"<?xml")


def test_a_run_is_drawn_into_its_own_folder_with_its_own_projections(
    draw: Scripts, sinusoidal_run: Path, tmp_path: Path
) -> None:
    ended = draw("projections", "--runs_dir", tmp_path, "--positions", "12", "--format", "svg")
    folder = sinusoidal_run / "results/projections"
    paths = [folder / f"projections_sinusoidal_{what}.svg" for what in ("curves", "matrices")]
    assert ended == said(*paths, newest=sinusoidal_run)
    svg = paths[0].read_text()
    assert "<!-- trained -->" in svg
    assert sinusoidal_run.name in svg
    loaded = load_run(sinusoidal_run)
    assert trained_scheme(loaded).encoder is loaded.model.encoder


def test_the_learned_tables_of_both_sides_are_drawn(draw: Scripts, learnable_run: Path) -> None:
    ended = draw("encoding", "--model_path", learnable_run)
    folder = learnable_run / "results/encoding"
    assert ended == said(*(folder / f"encoding_learnable_{s}.png" for s in ("source", "target")))
    loaded = load_run(learnable_run)
    for side, (_, figure) in zip(
        ("source", "target"), PICTURES["encoding"].draw([trained_scheme(loaded)])
    ):
        table = loaded.model.scheme.input(side).table.weight.detach().numpy()
        np.testing.assert_array_equal(images(figure)[0], table)
    error = draw("encoding", "--model_path", learnable_run, "--positions", "101").error()
    assert error == "--positions 101: the learnable encoding has 100"


def test_a_scheme_is_drawn_from_a_config(draw: Scripts, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    model = "ModelConfig(position=Learnable(), d_model=64)"
    file.write_text(f"from configs.schema import *\nconfig = Config(model={model})\n")
    args = ("encoding", "--config", file, "--runs_dir", tmp_path, "--format", "svg")
    folder = tmp_path / "pictures/mine"
    sides = [folder / f"encoding_learnable_{side}.svg" for side in ("source", "target")]
    assert draw(*args) == said(*sides)
    assert "learnable, untrained: added to embeddings of 64 dimensions" in sides[0].read_text()
    # Schemes in the config's model.
    both = draw(*args, "--position", "sinusoidal", "learnable")
    assert both == said(folder / "encoding_sinusoidal.svg", *sides)
    refused = draw("bias", *SMALL, "--position", "t5", "rope", "--output_dir", tmp_path / "biases")
    assert (refused.code, "'rope' adds no bias" in refused.err) == (2, True)
    drawn = {str(path) for path in (tmp_path / "biases").iterdir()}
    assert drawn == set(refused.out.splitlines()) != set()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("attention --layers 3", "epoch 2): it has encoder layers 1 to 2"),
        ("attention --kind cross --layers 1,9", "no decoder layer 9 (demo"),
        ("attention --heads 0", "argument --heads: '0': must be an integer >= 1"),
        ("attention --layers 1-2", "argument --layers: '1-2': must be an integer >= 1"),
        ("attention --kind self", "argument --kind: invalid choice: 'self'"),
        ("attention --format gif", "argument --format: invalid choice: 'gif'"),
        ("attention --src_text \N{NO-BREAK SPACE}", "there is nothing to look at"),
        ("attention --tgt_text ", "--tgt_text '': there is nothing to look at"),
        ("attention --src_text caf\udce9", "not valid Unicode"),
        ("attention --output_dir LICENSE", "cannot write LICENSE/attention_encoder.png"),
        (
            f"attention --src_text {'a' * 600}",
            "--src_text: 601 tokens, and a map shows 512 at most",
        ),
        ("attention --model_path nowhere", "nowhere: no such checkpoint or run folder"),
        ("encoding --config x.py --model_path x", "a run brings its own scheme"),
        ("bias --position t5 --model_path x", "a run brings its own scheme"),
        ("bias --set model.n_heads=4 --model_path x", "a run brings its own scheme"),
        ("bias --set model.n_heads=4", "a run brings its own scheme"),
        ("embedding_map --gif --position learnable", "or --gif, or else --position"),
        ("decay --device cuda:9", "--device cuda:9 is for the model of a run"),
        ("bias --position aliby", "aliby"),
        ("decay --positions 0", "argument --positions: '0': must be an integer >= 1"),
        ("rotation --gif", "unrecognized arguments: --gif"),
    ],
)
def test_a_mistake_gets_one_line(draw: Scripts, trained_run: Path, args: str, said: str) -> None:
    command, *others = args.split(" ")
    given = ("--model_path", trained_run, *SENTENCE) if command == "attention" else ()
    assert said in draw(command, *given, *others).error()


@pytest.mark.parametrize("command", ["attention", *PICTURES])
def test_the_help_says_what_each_picture_shows(
    draw: Scripts, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    out = draw(command, "--help").out
    assert "\nDraws " in out
    if command in PICTURES:
        assert f"Draws {PICTURES[command].shows}." in out
        assert "randomized_rope" in out


def test_heavy_packages_are_loaded_on_use_and_pyplot_never() -> None:
    assert "embedding_map" in run_script("visualize.py", "--help").stdout
    code = (
        "import sys, visualize\n"
        "visualize.parse_args(['decay'])\n"
        "print([name for name in ('torch', 'matplotlib', 'sklearn') if name in sys.modules])\n"
        "from pictures.panels import Curve, curve_panels\n"
        "curve_panels({'': {'a': Curve([1], [2])}}, title='t')\n"
        "print('matplotlib' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    assert run_script("-c", code).stdout == "[]\nTrue False\n"


# ---------------------------------------------------------------------------------------------- GIF


def save_state(run: Run, name: str, epoch: int) -> None:
    """Another checkpoint of the run, with tables that stand 0.1 elsewhere for each epoch."""
    payload = read_checkpoint(run.checkpoints / "best_checkpoint_1_loss=-1.0000.pt")
    for key, value in payload["model"].items():
        if "scheme" in key:
            payload["model"][key] = value + 0.1 * epoch * (value != 0)
    payload["progress"] = {"epoch": epoch, "step": 10 * epoch}
    torch.save(payload, run.checkpoints / name)


def test_frames_follow_the_checkpoints_of_a_run_on_common_axes(learnable_run: Path) -> None:
    run = Run(learnable_run)
    for epoch in (5, 6, 7):
        save_state(run, f"regular_checkpoint_{epoch}.pt", epoch)
    save_state(run, "best_checkpoint_6_loss=-0.5000.pt", 6)  # the same state twice: one frame
    figures = map_frames(run, 12)
    frames = {int(f.get_supxlabel().split("update ")[1].split(":")[0]): f for f in figures}
    first = read_checkpoint(run.checkpoints / "best_checkpoint_1_loss=-1.0000.pt")
    assert list(frames) == sorted([first["progress"]["step"], 50, 60, 70])
    assert len({tuple(frame.get_size_inches()) for frame in frames.values()}) == 1
    assert len({axes.get_xlim() for frame in frames.values() for axes in frame.axes[:2]}) == 1

    weights = read_checkpoint(run.checkpoints / "regular_checkpoint_7.pt")["model"]
    last = weights["scheme.source.table.weight"][:12].double().numpy()
    mean, axes, _ = principal_axes(last)
    for step, moved in ((70, 0.0), (50, 0.2)):  # in the directions of the last
        expected = (last - moved - mean) @ axes.T
        np.testing.assert_allclose(points(frames[step].axes[0]), expected, atol=1e-6)


def test_fixed_vectors_make_no_animation(sinusoidal_run: Path) -> None:
    with pytest.raises(UserError, match="'sinusoidal' are fixed, so no checkpoint moves them"):
        map_frames(Run(sinusoidal_run))


def test_the_animation_lies_beside_the_map(
    draw: Scripts, learnable_run: Path, tmp_path: Path
) -> None:
    from PIL import Image

    save_state(Run(learnable_run), "regular_checkpoint_5.pt", 5)
    args = ("--model_path", learnable_run, "--gif", "--positions", "8", "--output_dir", tmp_path)
    paths = [tmp_path / f"embedding_map_learnable.{suffix}" for suffix in ("png", "gif")]
    assert draw("embedding_map", *args) == said(*paths)
    with Image.open(paths[1]) as image:
        assert image.n_frames == 2
    with pytest.raises(UserError, match=r"^--gif: .* has no checkpoints of a training"):
        map_frames(Run(tmp_path))
