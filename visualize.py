"""Draw attention and positions: `python visualize.py attention --src_text "Le chat dort."`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from configs.load import add_set_argument, load_config
from configs.position_names import NAMES, position_in_names, position_name
from configs.schema import Config
from configs.serialize import apply_overrides
from data.corpora.text import plain_text
from pictures.distance import decay, ideas, projections, similarity
from pictures.maps import embedding_map
from pictures.positions import bias, encoding, permutation, rotation
from pictures.registry import Figures
from pictures.text import MOST_TOKENS
from translation.arguments import add_model_arguments, load_from_arguments, require_runs, run_paths
from translation.settings import require_same_languages
from utils.cli import Parser, at_most, positive, run_main
from utils.errors import UserError

if TYPE_CHECKING:
    from translation.translator import Translator

DRAWN = (encoding, bias, similarity, decay, projections, rotation, embedding_map)
MOST_POSITIONS = 2048  # a picture has fewer pixels, and a map of all pairs takes their square
PICTURES = {picture.name: picture for picture in (*DRAWN, ideas, permutation)}


def numbers(text: str) -> list[int] | None:
    """ "1,3" -> [1, 3]; "all" -> None."""
    return None if text.strip() == "all" else [positive(part) for part in text.split(",")]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(description="Draw attention maps, or what a position scheme does.")
    counted = at_most(MOST_POSITIONS)
    names = " | ".join(("attention", "explore", *PICTURES))
    commands = parser.add_subparsers(dest="command", required=True, metavar=names)

    shows = "attention maps of a sentence and its translation, from one run or two side by side"
    add = commands.add_parser("attention", help=shows, description=f"Draws {shows}.").add_argument
    add("--src_text", required=True, metavar="TEXT", help="the sentence")
    add("--tgt_text", metavar="TEXT", help="a translation to show (default: the greedy one)")
    kinds = ("encoder", "decoder", "cross", "all")
    add("--kind", choices=kinds, default="all", help="which attention (default: all)")
    for what in ("layers", "heads"):
        all_of = f"{what}, from 1 (default: all)"
        add(f"--{what}", type=numbers, metavar="1,2,...|all", help=all_of)
    add("--compare", type=Path, metavar="RUN_OR_CHECKPOINT", help="draw this one on the right")

    for name, picture in PICTURES.items():
        shows = picture.shows
        command = commands.add_parser(name, help=shows.split(":")[0], description=f"Draws {shows}.")
        add = command.add_argument
        drawn = " ".join(picture.schemes) or "the scheme of --model_path"
        fresh = f"schemes as they are before training (default: {drawn}): {NAMES}"
        add("--position", nargs="+", metavar="NAME[:FIELD=VALUE...]", help=fresh)
        of_config = "draw the scheme of this config; with --position, take only its other fields"
        add("--config", metavar="FILE", help=of_config)
        field = "field of the config, or without --config of the default one (512 dimensions)"
        add_set_argument(command, "model.FIELD=VALUE", field)
        how_many = f"how many (default: {picture.n_positions}, or all that the scheme has)"
        add("--positions", type=counted, metavar="N", help=how_many)
        if picture is embedding_map:
            films = "also animate it over the run's checkpoints (train.keep_regular=N keeps N)"
            add("--gif", action="store_true", help=films)

    folder = "default: results/ in the run's folder, or pictures/ in --runs_dir without a run"
    formats = ("png", "pdf", "svg")
    for command in commands.choices.values():
        add_model_arguments(command)
        command.add_argument("--output_dir", type=Path, metavar="DIR", help=folder)
        command.add_argument("--format", choices=formats, default="png", help="default: png")

    shows = "everything about one sentence in one HTML file: attention, search, positions"
    explore = commands.add_parser("explore", help=shows, description=f"Shows {shows}.")
    add = explore.add_argument
    add("--src_text", required=True, metavar="TEXT", help="the sentence")
    add("--tgt_text", metavar="TEXT", help="a translation to show (default: the best of the beam)")
    add_model_arguments(explore, several="two stand side by side")
    where = "default: results/explorer.html in the run's folder"
    add("--output", type=Path, metavar="FILE", help=where)
    return parser.parse_args(argv)


def explore(args: argparse.Namespace) -> None:
    if len(args.model_path or ()) > 2:
        many = len(args.model_path)
        raise UserError(f"--model_path with {many} models: two stand side by side at most")
    require_sentence(args)

    from explorer.page import page
    from explorer.trace import trace
    from utils.lines import writer

    file, traces, runs = args.output, [], []
    for path in run_paths(args):
        loaded, translator = load_from_arguments(args, path=path)
        runs.append(loaded)
        require_same_languages(runs[0].config.data, loaded.config.data, path)
        encoded_source(args, translator)
        traces.append(trace(loaded, translator, args.src_text, args.tgt_text))
        require_readable(len(traces[-1]["target"]["pieces"]), "the translation: {:,} tokens")
        file = file or loaded.run.results / "explorer.html"
    with writer(file) as write:
        write([page(traces)])
    print(*(traced["target"]["text"] for traced in traces), file, sep="\n")


def require_sentence(args: argparse.Namespace, *others: Path) -> None:
    """Raises UserError for a missing sentence or run, or too long a text. Imports no torch."""
    for flag, text in (("--src_text", args.src_text), ("--tgt_text", args.tgt_text)):
        if text is not None and not text.strip():
            raise UserError(f"{flag} {text!r}: there is nothing to look at")
        require_readable(len((text or "").split()), f"{flag}: {{:,}} words")  # each a token or more
    require_runs(args, *others)


def draw_attention(args: argparse.Namespace) -> None:
    others = [args.compare] if args.compare else []
    require_sentence(args, *others)

    from pictures.attention import KINDS, attention_grid, attention_maps

    maps, translations, runs = [], [], []
    for path in (args.model_path, *others):
        loaded, translator = load_from_arguments(args, path=path)
        runs.append(loaded)
        require_same_languages(runs[0].config.data, loaded.config.data, path)
        source = encoded_source(args, translator)
        attention = translator.attention(source, args.tgt_text)
        require_readable(len(attention.target), "the translation: {:,} tokens")
        found = attention_maps(
            attention,
            layers=args.layers,
            heads=args.heads,
            kinds=KINDS if args.kind == "all" else (args.kind,),
            about=f" ({loaded.run.name}, {loaded.when})",
        )
        maps.append(found)
        translations.append(attention.text)
    suffix = "_compared" if args.compare else ""
    figures = (
        (f"attention_{kind}{suffix}", attention_grid(*(run[kind] for run in maps)))
        for kind in maps[0]
    )
    folder = args.output_dir or runs[0].run.results / "attention"
    print(*translations, *save(figures, folder, args.format), sep="\n")


def encoded_source(args: argparse.Namespace, translator: Translator) -> list[int]:
    """Raises UserError where it or the given translation is too long for a map."""
    [source] = translator.encode([args.src_text])
    require_readable(len(source), "--src_text: {:,} tokens")
    given = translator.tokenizer.encode_tgt(plain_text(args.tgt_text or ""))
    require_readable(len(given), "--tgt_text: {:,} tokens")
    return source


def require_readable(n: int, said: str) -> None:
    if n > MOST_TOKENS:
        raise UserError(
            f"{said.format(n)}, and a map shows {MOST_TOKENS} at most: give a shorter sentence"
        )


def draw_schemes(args: argparse.Namespace) -> None:
    picture = PICTURES[args.command]
    names = args.position or ([None] if args.config else picture.schemes)
    gif = getattr(args, "gif", False)
    of_run = args.model_path or gif or not names
    if of_run and (args.position or args.config or args.overrides):
        raise UserError(
            f"a run brings its own scheme: give --model_path{' or --gif' * hasattr(args, 'gif')}, "
            "or else --position or --config, to which --set applies"
        )
    if of_run:
        require_runs(args)
    plain = load_config(args.config) if args.config else Config()
    # One folder for all pictures of a config.
    overrides = [f"name={plain.name}", *args.overrides]
    models = [apply_overrides(plain, overrides, position=name).model for name in names]

    import torch

    from pictures.maps import map_frames
    from pictures.panels import save_animation
    from pictures.schemes import fresh_scheme, trained_scheme

    if of_run:
        loaded, _ = load_from_arguments(args)
        schemes = [trained_scheme(loaded)]
        folder = loaded.run.results / args.command
    else:
        if args.device not in ("auto", "cpu"):
            raise UserError(f"--device {args.device} is for the model of a run: leave it out")
        if args.threads is not None:
            torch.set_num_threads(args.threads)
        places = ((m.position, name) for name, m in zip(names, models))
        labels = (position_in_names(name or position_name(p) or p.kind) for p, name in places)
        schemes = [*map(fresh_scheme, labels, models)]
        folder = args.runs_dir / "pictures" / (plain.name if args.config else "")
    folder = args.output_dir or folder
    for path in save(picture.draw(schemes, args.positions), folder, args.format):
        print(path)  # at once: a later scheme may be refused
    if gif:
        frames = map_frames(loaded.run, args.positions)
        print(save_animation(frames, folder / f"{args.command}_{schemes[0].name}.gif"))


def save(figures: Figures, folder: Path, suffix: str) -> Iterator[Path]:
    from pictures.panels import save_figure

    for name, figure in figures:
        yield save_figure(figure, folder / f"{name}.{suffix}")


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    {"attention": draw_attention, "explore": explore}.get(args.command, draw_schemes)(args)


if __name__ == "__main__":
    run_main(main)
