"""Decoding speed beside other libraries, same weights: `python benchmarks/bench_decode.py`.

Our search, MarianMTModel.generate and CTranslate2 (one translation at a time) translate the same
batches of ids in turn, round by round, each in a process of its own. Sources are random, with
random weights that give --tokens of output for every sentence; with --model_path also sentences of
that run's corpus. There is no length penalty, so that all search for the same thing: the most
probable translation. Ours keeps freed memory, as inference.py does. For 16 bits the weights are
cast; only CTranslate2 has int8. Written into --output_dir: bench_decode.md and .json.
"""

import copy
import importlib
import random
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

if not __package__:  # run as a file: imports begin at the root of the repository
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from benchmarks import common
from benchmarks.common import BOS, DTYPES, EOS, PAD, SIZES, UNK, Report, Vocabulary, ratio, spread
from benchmarks.train_models import marian_model
from checkpoints.ctranslate2 import convert, require_ctranslate2
from checkpoints.run import require_there
from checkpoints.transformers_weights import to_theirs
from configs.schema import Config, DecodeConfig, ModelConfig, Sinusoidal
from configs.serialize import to_dict
from data.corpora.build import build_corpus
from models.build import build_model
from models.decoding.beam import beam_search
from models.decoding.stepwise import greedy_search
from models.linear import weights_fixed
from models.transformer import TranslationTransformer
from tokenizer.base import BaseTokenizer
from translation.loading import load_run
from translation.search import limits_of, pad_sources
from utils.cli import Parser, positive, run_main
from utils.errors import UserError, one_line
from utils.machine import IN_A_SEARCH, computes_bf16, keep_freed_memory

AT_LEAST = 8  # sentences in a round, so that batches of one are not measured by a single sentence
SOURCE_TOKENS = (20, 40)  # of a random source, from and to
NO_RATIO = 999.0  # the source length sets no limit
MARIAN = "post-norm, sinusoids in halves of base 10000, biases, one tied vocabulary"
PEERS = ("transformers", "ctranslate2")
PRECISIONS = (*DTYPES, "int8")

Sentences = Sequence[Sequence[int]]  # ids, each with EOS
# A batch and a beam size (1: greedy) -> ids without EOS, of work.max_tokens with it at most.
Translate = Callable[[Sentences, int], list[list[int]]]


@dataclass(frozen=True, slots=True)
class Work:
    """A model in float32 on the CPU, the sentences to translate, and a description of both.

    exactly: every output must have max_tokens tokens, so that all speeds are for the same work.
    """

    model: TranslationTransformer
    config: ModelConfig
    tokenizer: BaseTokenizer
    sources: Sentences
    max_tokens: int
    words: str
    exactly: bool


def ours(work: Work, precision: str, device: torch.device) -> Translate:
    common.use_precision(precision)
    keep_freed_memory(IN_A_SEARCH)  # as inference.py does
    scope = ExitStack()
    scope.enter_context(weights_fixed())  # as in all searches of a command
    tokenizer = work.tokenizer
    model = copy.deepcopy(work.model).to(device, DTYPES[precision]).eval()
    decode = DecodeConfig(max_len=work.max_tokens, max_len_ratio=NO_RATIO, length_penalty=0.0)
    limits = limits_of(decode, tokenizer)

    # `held`: the scope stays open as long as this function exists.
    def translate(batch: Sentences, beam_size: int, held: Any = scope) -> list[list[int]]:
        src = pad_sources(batch, tokenizer.pad_id).to(device)
        if beam_size == 1:
            found = greedy_search(model, src, limits)
        else:
            found = beam_search(model, src, limits, beam_size=beam_size, n_best=1)
        return [list(best.ids) for [best] in found]

    return translate


def hugging_face(work: Work, precision: str, device: torch.device) -> Translate:
    common.use_precision(precision)
    pad_id, eos_id = work.tokenizer.pad_id, work.tokenizer.eos_id
    model = to_marian(work).to(device, DTYPES[precision]).eval()

    def translate(batch: Sentences, beam_size: int) -> list[list[int]]:
        src = pad_sources(batch, pad_id).to(device)
        out = model.generate(
            input_ids=src,
            attention_mask=(src != pad_id).long(),
            num_beams=beam_size,
            do_sample=False,
            max_new_tokens=work.max_tokens,
            # generate warns of beam options with one beam
            **({"length_penalty": 0.0} if beam_size > 1 else {}),
        )
        rows = [row[1:] for row in out.tolist()]  # without the start id
        return [row[: row.index(eos_id)] if eos_id in row else row for row in rows]

    return translate


def to_marian(work: Work) -> Any:
    """A MarianMTModel with the same weights.

    Raises UserError for a model that is not Marian's, ImportError without the package.
    """
    config, tokenizer = work.config, work.tokenizer
    alike = (config.norm, config.position, config.bias, config.tie_embeddings, config.backend)
    if alike != ("post", Sinusoidal(layout="half"), True, "all", "scratch"):
        raise UserError(f"a MarianMTModel has {MARIAN}; this model differs")
    marian = marian_model(
        config,
        tokenizer,
        max_position_embeddings=1024,
        pad_token_id=tokenizer.pad_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_id,
        forced_eos_token_id=None,
        decoder_start_token_id=tokenizer.bos_id,
    )
    # The weights lack the table of sinusoids, which both compute.
    marian.load_state_dict(to_theirs(work.model.state_dict(), config), strict=False)
    return marian


def ctranslate2(work: Work, precision: str, device: torch.device, stack: ExitStack) -> Translate:
    """`stack` removes the converted model."""
    tokenizer = work.tokenizer
    library = require_ctranslate2()
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    convert(work.model, work.config, tokenizer, Path(folder), quantization="float32")
    if precision not in library.get_supported_compute_types(device.type):
        raise UserError(f"it does not compute in {precision} on this machine")
    computing = {"compute_type": precision, "intra_threads": torch.get_num_threads()}
    computing |= {"device": device.type, "inter_threads": 1}
    translate_pieces = common.apart(stack, common.CPU, ctranslate2_search, folder, computing)
    pieces = tokenizer.src_pieces(range(tokenizer.src_vocab_size))
    tgt_pieces = tokenizer.tgt_pieces(range(tokenizer.tgt_vocab_size))
    ids = {piece: i for i, piece in enumerate(tgt_pieces)}

    def translate(batch: Sentences, beam_size: int) -> list[list[int]]:
        options = {
            "beam_size": beam_size,
            "length_penalty": 0,
            "max_decoding_length": work.max_tokens,
            "min_decoding_length": 0,
            "max_input_length": 0,
        }
        texts = [[pieces[i] for i in sentence] for sentence in batch]
        found = translate_pieces(texts, options)
        return [[ids[piece] for piece in best] for best in found]

    return translate


def ctranslate2_search(folder: str, computing: dict[str, Any]) -> Callable[..., list[list[str]]]:
    """Pieces of sentences -> pieces of the best hypothesis of each, by a converted model."""
    translator = importlib.import_module("ctranslate2").Translator(folder, **computing)

    def translate(batch: Sequence[Sequence[str]], options: dict[str, Any]) -> list[list[str]]:
        return [result.hypotheses[0] for result in translator.translate_batch(batch, **options)]

    return translate


# Both are made in the process in which they work. CTranslate2's model is converted before.
MAKERS = {"ours": ours, "transformers": hugging_face}


def systems_of(
    work: Work,
    peers: Sequence[str],
    precisions: Sequence[str],
    device: torch.device,
    stack: ExitStack,
) -> tuple[dict[tuple[str, str], Translate], dict[str, str]]:
    """The systems that take part, by name and precision, and why the others do not.

    Ours in float32 always takes part, and comes first. They last until `stack` ends.
    """
    made: dict[tuple[str, str], Translate] = {}
    left_out: dict[str, str] = {}
    asked = [(name, precision) for precision in precisions for name in ("ours", *peers)]
    for name, precision in dict.fromkeys([("ours", "float32"), *asked]):
        if precision == "int8" and name != "ctranslate2":
            continue
        try:
            if name == "ctranslate2":
                translate = ctranslate2(work, precision, device, stack)
            else:
                translate = common.apart(stack, device, MAKERS[name], work, precision, device)
            translate(work.sources[:1], 1)  # only now CTranslate2 loads CUDA's libraries
            made[name, precision] = translate
        except Exception as error:  # from another library
            if name == "ours":
                raise
            left_out[f"{name}, {precision}"] = one_line(error)
    return made, left_out


def random_work(size: str, n_sentences: int, max_tokens: int, seed: int) -> Work:
    """Random weights that never choose a special id, and whose output depends on the source.

    The embeddings of the special ids, tied with the output, are zero: their logit is 0, never the
    best of a vocabulary. The shape is one that a MarianMTModel can have.
    """
    config = ModelConfig(**SIZES[size].shape(), position=Sinusoidal(layout="half"), norm="post")
    vocab_size = SIZES[size].vocab_size
    tokenizer = cast(BaseTokenizer, Vocabulary(vocab_size))
    torch.manual_seed(seed)
    model = build_model(config, tokenizer).eval()
    with torch.no_grad():
        model.src_embedding.weight[[UNK, PAD, BOS, EOS]] = 0.0
        for name, weight in model.named_parameters():
            if "cross_attention" in name:
                weight.mul_(2)
    draw = random.Random(seed)
    lengths = [draw.randint(*SOURCE_TOKENS) for _ in range(n_sentences)]
    sources = [[*draw.choices(range(EOS + 1, vocab_size), k=length - 1), EOS] for length in lengths]
    words = "Random weights, random sources of {} to {} tokens".format(*SOURCE_TOKENS)
    return Work(model, config, tokenizer, sources, max_tokens, words, exactly=True)


def real_work(path: Path, n_sentences: int) -> Work:
    """The model of a run or checkpoint, and the first test sentences of its corpus."""
    loaded = load_run(path)
    corpus = build_corpus(loaded.config.data)
    split = corpus.test[0]
    sources = loaded.tokenizer.encode_src_batch(corpus.load(split).src[:n_sentences])
    mean = sum(map(len, sources)) / len(sources)
    words = f"{loaded.checkpoint.name}, update {loaded.step}; sentences of split {split}, "
    words += f"{mean:.1f} source tokens each"
    config, longest = loaded.config.model, loaded.config.decode.max_len
    return Work(loaded.model, config, loaded.tokenizer, sources, longest, words, exactly=False)


def in_batches(sources: Sentences, batch_size: int) -> list[Sentences]:
    """A round's work: the first max(batch_size, AT_LEAST) sentences, in batches of like lengths."""
    chosen = sorted(sources[: max(batch_size, AT_LEAST)], key=len, reverse=True)
    return [chosen[start : start + batch_size] for start in range(0, len(chosen), batch_size)]


def compare(
    systems: Mapping[tuple[str, str], Translate],
    work: Work,
    beam_size: int,
    batch_size: int,
    **timing: Any,
) -> list[dict[str, Any]]:
    """A row for each system: its speed, and its outputs against those of ours in float32.

    `timing` is for common.in_turn. Raises UserError for an output of another length, if the work
    asks for it exactly.
    """
    outputs: dict[tuple[str, str], list[list[int]]] = {}
    search = "greedy" if beam_size == 1 else f"beam {beam_size}"
    batches = in_batches(work.sources, batch_size)

    def run(key: tuple[str, str], number: int) -> None:
        found = [systems[key](batch, beam_size) for batch in batches]
        outputs[key] = [ids for batch in found for ids in batch]

    taken = common.in_turn({" ".join(key): partial(run, key) for key in systems}, **timing)
    rows = []
    for ((name, precision), ids), seconds in zip(outputs.items(), taken.values()):
        n_tokens = sum(map(len, ids))
        if work.exactly and any(len(sentence) != work.max_tokens for sentence in ids):
            what = f"an output does not have {work.max_tokens} tokens; choose another --seed"
            raise UserError(f"{name} {precision}: {what}")
        same = [a == b for a, b in zip(ids, outputs["ours", "float32"])]
        row = {
            "system": name,
            "precision": precision,
            "search": search,
            "batch": len(batches[0]),
            "sentences": len(ids),
            "output_tokens": n_tokens,
            "sentences_per_second": spread([len(ids) / s for s in seconds]),
            "tokens_per_second": spread([n_tokens / s for s in seconds]),
            "same_tokens": sum(same) / len(ids),
            "ours_float32_over_it": ratio(seconds, taken["ours float32"]),
            "seconds": seconds,
        }
        rows.append(row)
    return rows


def add_sections(
    report: Report, heading: str, work: Work, args: Namespace, device: torch.device
) -> None:
    """One section for each search, with all batch sizes."""
    columns = {
        "system": "{system} {precision}",
        "batch": "{batch}",
        "sentences/s": "{sentences_per_second}",
        "output tokens/s": "{tokens_per_second.median:,.0f}",
        "ours float32 / it": "{ours_float32_over_it}",
        "same tokens": "{same_tokens:.0%}",
    }
    timing = {"rounds": args.rounds, "warmup": args.warmup, "device": device}
    with ExitStack() as stack:
        systems, left_out = systems_of(work, args.peers, args.precision, device, stack)
        versions = {name: version(name) for name, _ in systems if name != "ours"}
        same = {
            "max_tokens": work.max_tokens,
            "work": work.words,
            "model": to_dict(Config(model=work.config))["model"],
            "vocabulary": work.tokenizer.tgt_vocab_size,
            "versions": versions,
            "left_out": left_out,
        }
        for beam_size in dict.fromkeys(args.beam):
            rows = [
                row
                for batch_size in dict.fromkeys(args.batch)
                for row in compare(systems, work, beam_size, batch_size, **timing)
            ]
            body = (
                f"{work.words}. {args.rounds} rounds: medians (quartiles); ratios of speed within "
                "a round; same tokens: sentences whose output is that of ours in float32. "
                f"{', '.join(map(' '.join, versions.items()))}\n\n{common.table(rows, columns)}"
            )
            body += "".join(f"- left out: {name} ({why})\n" for name, why in left_out.items())
            search = rows[0]["search"]
            report.add(f"{heading}: {search}", body, {"search": search, **same, "rows": rows})


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = Parser(prog="bench_decode.py", description="Decoding speed beside other libraries.")
    add = parser.add_argument
    add("--size", nargs="*", choices=SIZES, default=["small"], help="fixed length (default: small)")
    what = "default: float32, int8, and bfloat16 where the machine computes in it"
    add("--precision", nargs="+", choices=PRECISIONS, help=what)
    add("--peers", nargs="*", choices=PEERS, default=list(PEERS), help="default: all")
    several: dict[str, Any] = {"nargs": "+", "type": positive, "metavar": "N"}
    add("--beam", **several, default=[1, 5], help="default: 1 5")
    add("--batch", **several, default=[1, 32, 128], help="default: 1 32 128")
    what = "the fixed length of --size (default: 40)"
    add("--tokens", type=positive, default=40, metavar="N", help=what)
    what = "also with this model, on sentences of its corpus"
    add("--model_path", type=Path, metavar="RUN_OR_CHECKPOINT", help=what)
    common.add_arguments(parser, "bench_decode", rounds=7, draws=True)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    if args.model_path is not None:
        require_there(args.model_path)
    elif not args.size:
        raise UserError("nothing to measure: name a --size, or a model by --model_path")
    device = common.use_machine(args)
    if args.precision is None:
        args.precision = ["float32", *["bfloat16"] * computes_bf16(device), "int8"]
    report = Report("bench_decode", "Decoding speed", args, device)
    n_sentences = max(*args.batch, AT_LEAST)
    for size in dict.fromkeys(args.size):
        work = random_work(size, n_sentences, args.tokens, args.seed)
        add_sections(report, f"{size}, {args.tokens} tokens", work, args, device)
    if args.model_path is not None:
        work = real_work(args.model_path, n_sentences)
        heading = f"real sentences, {args.model_path.name}"
        add_sections(report, heading, work, args, device)


if __name__ == "__main__":
    run_main(main)
