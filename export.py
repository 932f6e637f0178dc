"""Write a trained model for use elsewhere: `python export.py --format safetensors ...`."""

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

from translation.arguments import add_run_arguments, require_runs
from utils.cli import Parser, run_main
from utils.errors import UserError
from utils.files import atomic_path, write_errors, write_text

FLOATS = ("float32", "float16", "bfloat16")
QUANTIZATIONS = (*FLOATS, "int16", "int8", *(f"int8_{name}" for name in FLOATS))  # CTranslate2's


def parse_args(argv: list[str] | None = None) -> Namespace:
    parser = Parser(description="Write a trained model for use elsewhere.")
    add_run_arguments(parser)
    add = parser.add_argument
    what = "for this project, for CTranslate2, or for transformers and the hub"
    formats = ("safetensors", "ctranslate2", "transformers")
    add("--format", choices=formats, required=True, help=what)
    what = "a new or an empty folder"
    add("--output_dir", metavar="DIR", type=Path, required=True, help=what)
    what = "type of a CTranslate2 model's weights (default: float32)"
    add("--quantization", choices=QUANTIZATIONS, help=what)
    what = "transformers, post-norm: in the form that CTranslate2's own converter takes"
    add("--zero_start", action="store_true", help=what)
    args = parser.parse_args(argv)
    if args.zero_start and args.format != "transformers":
        raise UserError("--zero_start is for --format transformers: leave it out")
    if args.quantization is not None and args.format != "ctranslate2":
        raise UserError(f"--quantization {args.quantization} is for --format ctranslate2")
    out = args.output_dir = Path(os.path.realpath(args.output_dir))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--output_dir {out} is not empty: give a new folder")
    if out == Path.cwd() or out.is_mount():
        raise UserError(f"--output_dir {out} cannot be replaced: give a folder in it")
    return args


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    require_runs(args)
    from checkpoints.content import TOKENIZER, write_safetensors
    from translation.loading import load_run

    if args.format == "ctranslate2":
        from checkpoints.ctranslate2 import convert, require_ctranslate2

        require_ctranslate2()
    loaded = load_run(args.model_path)
    with write_errors(args.output_dir), atomic_path(args.output_dir) as folder:
        folder.mkdir(parents=True)
        progress = {"epoch": loaded.epoch, "step": loaded.step}
        if args.format == "safetensors":
            write_safetensors(loaded.model, loaded.config, loaded.tokenizer, progress, folder)
        elif args.format == "transformers":
            from checkpoints.model_card import model_card
            from checkpoints.transformers_export import write_transformers

            trained = loaded.model, loaded.config, loaded.tokenizer
            write_transformers(*trained, folder, zero_start=args.zero_start)
            n_parameters = sum(weight.numel() for weight in loaded.model.parameters())
            found: dict[str, Any] = {"results": loaded.run.results, "checksum": loaded.checksum}
            about = loaded.config, loaded.tokenizer, progress
            card = model_card(*about, n_parameters=n_parameters, **found)
            write_text(folder / "README.md", card)
        else:
            model, config = loaded.model, loaded.config.model
            quantization = args.quantization or "float32"
            try:
                convert(model, config, loaded.tokenizer, folder, quantization=quantization)
            except UserError as error:
                raise UserError(f"{error}; --format safetensors takes every model") from error
            loaded.tokenizer.save(folder / TOKENIZER)
    print(f"{loaded.checkpoint}: epoch {loaded.epoch}, update {loaded.step}")
    for path in sorted(args.output_dir.iterdir()):
        size = f"{path.stat().st_size / 1e6:,.2f} MB" if path.is_file() else "folder"
        print(f"{path} ({size})")


if __name__ == "__main__":
    run_main(main)
