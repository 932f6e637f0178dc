"""Draw attention and positions: `python visualize.py attention --src_text "Le chat dort."`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pictures.arguments import (
    PICTURES,
    add_picture_commands,
    asked_configs,
    check_picture_arguments,
)
from translation.arguments import add_model_arguments, load_from_arguments
from utils.cli import Parser, positive, run_main
from utils.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from models.positional_encodings.base import Kind
    from pictures.attention import AttentionMaps


def numbers(text: str) -> list[int] | None:
    """ "1,3" -> [1, 3]; "all" -> None."""
    return None if text.strip() == "all" else [positive(part) for part in text.split(",")]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(description="Draw attention maps, or what a position scheme does.")
    names = " | ".join(("attention", *PICTURES))
    commands = parser.add_subparsers(dest="command", required=True, metavar=names)

    shows = "attention maps of one sentence and its translation, of one run or of two side by side"
    add = commands.add_parser("attention", help=shows, description=f"Draws {shows}.").add_argument
    add("--src_text", required=True, metavar="TEXT", help="the sentence")
    add("--tgt_text", metavar="TEXT", help="a translation to show (default: the greedy one)")
    kinds = ("encoder", "decoder", "cross", "all")
    add("--kind", choices=kinds, default="all", help="which attention (default: all)")
    for what in ("layers", "heads"):
        all_of = f"{what}, from 1 (default: all)"
        add(f"--{what}", type=numbers, metavar="1,2,...|all", help=all_of)
    add("--compare", type=Path, metavar="RUN_OR_CHECKPOINT", help="draw this one at the right")

    add_picture_commands(commands)
    folder = "default: results/ in the run's folder, or pictures/ in --runs_dir without a run"
    formats = ("png", "pdf", "svg")
    for command in commands.choices.values():
        add_model_arguments(command)
        command.add_argument("--output_dir", type=Path, metavar="DIR", help=folder)
        command.add_argument("--format", choices=formats, default="png", help="default: png")
    args = parser.parse_args(argv)
    if args.command != "attention":
        check_picture_arguments(args)
    elif not args.src_text.strip():
        raise UserError(f"--src_text {args.src_text!r}: there is nothing to look at")
    return args


def draw_attention(args: argparse.Namespace) -> None:
    from pictures.attention import attention_grid

    shown = [attention_of(args, args.model_path)]
    if args.compare:
        shown.append(attention_of(args, args.compare))
    translations, runs, folders = zip(*shown)
    suffix = "_compared" if args.compare else ""
    figures = (
        (f"attention_{kind}{suffix}", attention_grid(*(run[kind] for run in runs)))
        for kind in runs[0]
    )
    print(*translations, *save(figures, args.output_dir or folders[0], args.format), sep="\n")


def attention_of(
    args: argparse.Namespace, model: Path | None
) -> tuple[str, dict[Kind, AttentionMaps], Path]:
    """The translation whose attention is shown, its maps, and the folder for the pictures."""
    from pictures.attention import KINDS, attention_maps, target_tokens

    loaded, translator = load_from_arguments(
        argparse.Namespace(**{**vars(args), "model_path": model})
    )
    backend = loaded.config.model.backend
    if backend != "scratch":
        raise UserError(
            f'{loaded.run.path}: a model of backend "{backend}" does not show its attention; '
            "train one with model.backend=scratch"
        )
    source = translator.encode([args.src_text])[0]
    target = target_tokens(translator, source, args.tgt_text)
    maps = attention_maps(
        translator,
        source,
        target,
        kinds=KINDS if args.kind == "all" else (args.kind,),
        layers=args.layers,
        heads=args.heads,
        about=f" ({loaded.run.path.name}, epoch {loaded.epoch})",
    )
    return translator.tokenizer.decode(target), maps, loaded.run.results / "attention"


def draw_schemes(args: argparse.Namespace) -> None:
    asked = asked_configs(args)

    from pictures.maps import map_frames
    from pictures.panels import save_animation
    from pictures.schemes import fresh_scheme, trained_scheme

    loaded = None
    if asked:
        schemes = [fresh_scheme(name, config.model) for name, config in asked]
        folder = args.runs_dir / "pictures" / (asked[0][1].name if args.config else "")
    else:
        loaded, _ = load_from_arguments(args)
        schemes = [trained_scheme(loaded)]
        folder = loaded.run.results / args.command
    folder = args.output_dir or folder
    figures = PICTURES[args.command].draw(schemes, args.positions)
    paths = save(figures, folder, args.format)
    if loaded and args.command == "embedding_map" and args.gif:
        frames = map_frames(loaded.run, args.positions)
        paths.append(save_animation(frames, folder / f"{args.command}_{schemes[0].name}.gif"))
    print(*paths, sep="\n")


def save(figures: Iterable[tuple[str, Figure]], folder: Path, suffix: str) -> list[Path]:
    from pictures.panels import save_figure

    return [save_figure(figure, folder / f"{name}.{suffix}") for name, figure in figures]


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    (draw_attention if args.command == "attention" else draw_schemes)(args)


if __name__ == "__main__":
    run_main(main)
