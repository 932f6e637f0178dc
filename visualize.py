"""Draw attention maps and positional encodings: `python visualize.py attention --src_text "Le chat dort."`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from configs.errors import UserError
from utils.arguments import Parser, add_model_arguments, load_from_arguments, positive
from utils.cli import run_main
from utils.config import load_config

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("encoder", "decoder", "cross")


def numbers(text: str) -> list[int] | None:
    """ "1,3" -> [1, 3]; "all" -> None."""
    return None if text.strip() == "all" else [positive(part) for part in text.split(",")]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(description="Draw attention maps, or the positional encoding.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="attention | encoding")

    attention = commands.add_parser("attention", help="attention maps of one sentence and its translation")
    attention.add_argument("--src_text", required=True, metavar="TEXT", help="the sentence")
    attention.add_argument("--tgt_text", metavar="TEXT", help="a translation to show (default: the greedy one)")
    attention.add_argument("--kind", choices=(*KINDS, "all"), default="all", help="which attention (default: all)")
    attention.add_argument("--layers", type=numbers, metavar="1,2,...|all", help="layers, from 1 (default: all)")
    attention.add_argument("--heads", type=numbers, metavar="1,2,...|all", help="heads, from 1 (default: all)")

    encoding = commands.add_parser("encoding", help="the positional encoding by position and dimension")
    encoding.add_argument("--config", metavar="FILE", help="draw what this config asks for, without a trained run")
    encoding.add_argument("--positions", type=positive, metavar="N", help="how many positions (default: 128)")

    for command in (attention, encoding):
        add_model_arguments(command)
        command.add_argument("--output_dir", type=Path, metavar="DIR", help="default: results/ in the run's folder")
        command.add_argument("--format", choices=("png", "pdf", "svg"), default="png", help="default: png")
    args = parser.parse_args(argv)
    if args.command == "attention" and not args.src_text.strip():
        raise UserError(f"--src_text {args.src_text!r}: there is nothing to look at")
    if args.command == "encoding" and args.config and args.model_path:
        raise UserError("--config and --model_path: give one of them")
    return args


def attention(args: argparse.Namespace) -> None:
    from utils.visuals import attention_figures, target_tokens

    loaded, translator = load_from_arguments(args)
    if loaded.config.model.backend != "scratch":
        raise UserError(
            f'{loaded.run.path}: a model of backend "{loaded.config.model.backend}" does not show its attention; '
            "train one with model.backend=scratch"
        )
    source = translator.encode([args.src_text])[0]
    target = target_tokens(translator, source, args.tgt_text)
    figures = attention_figures(
        translator,
        source,
        target,
        kinds=KINDS if args.kind == "all" else (args.kind,),
        layers=args.layers,
        heads=args.heads,
        about=f" ({loaded.run.path.name}, epoch {loaded.epoch})",
    )
    folder = args.output_dir or loaded.run.results / "attention"
    paths = save({f"attention_{kind}": figure for kind, figure in figures.items()}, folder, args.format)
    print(translator.tokenizer.decode(target), *paths, sep="\n")


def encoding(args: argparse.Namespace) -> None:
    config = load_config(args.config) if args.config else None

    from utils.visuals import encoding_figures

    if config is not None:
        from models.build import build_scheme

        scheme, about = build_scheme(config.model), ""
        if any(True for _ in scheme.parameters()):
            raise UserError(
                f"{args.config}: the {config.model.position.kind} encoding is trained: give the run, --model_path RUN"
            )
        folder = args.runs_dir / f"{config.name}_encoding"
    else:
        loaded, _ = load_from_arguments(args)
        scheme, config = loaded.model.scheme, loaded.config
        about = f" ({loaded.run.path.name}, epoch {loaded.epoch})"
        folder = loaded.run.results / "encoding"
    figures = dict(encoding_figures(scheme, config, n_positions=args.positions, about=about))
    named = {f"encoding_{name}": figure for name, figure in figures.items()}
    print(*save(named, args.output_dir or folder, args.format), sep="\n")


def save(figures: dict[str, Figure], folder: Path, suffix: str) -> list[Path]:
    from utils.plots import save_figure

    return [save_figure(figure, folder / f"{name}.{suffix}") for name, figure in figures.items()]


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    {"attention": attention, "encoding": encoding}[args.command](args)


if __name__ == "__main__":
    run_main(main)
