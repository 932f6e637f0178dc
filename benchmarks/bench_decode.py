"""Decoding speed beside other libraries, same weights: `python benchmarks/bench_decode.py`.

Our search, Hugging Face's MarianMTModel.generate and CTranslate2 translate the same batches of ids,
in turn, round by round: sentences and output tokens a second, and how many sentences get the same
tokens as from ours in float32. Written into --output_dir: bench_decode.md and bench_decode.json.
Two kinds of work:

fixed length: random weights and sources, --tokens of output for every sentence. The embeddings of
the special ids, tied with the output, are zero: their logit is 0, never the best of a vocabulary.

real: sentences of a corpus and the model of --model_path, or a small one trained for --train_steps.

No length penalty anywhere, so that all search for the same thing: the most probable translation.
"bfloat16" has its weights cast; int8 is CTranslate2's alone. Each has --threads threads
(CTranslate2: one translation at a time).
"""

from __future__ import annotations

import copy
import logging
import random
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

if not __package__:  # run as a file: imports begin at the root of the repository
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from benchmarks import common
from benchmarks.common import DTYPES, Report, ratio, spread, table
from benchmarks.ctranslate2_process import TranslatorProcess
from benchmarks.train_models import marian_model
from benchmarks.train_setup import BOS, EOS, PAD, SIZES, UNK, Vocabulary
from checkpoints.ctranslate2 import convert, require_ctranslate2
from configs.schema import Config, ModelConfig, Sinusoidal
from configs.serialize import apply_overrides, to_dict
from data.corpora.build import build_corpus
from models.build import build_model
from models.decoding.beam import beam_search
from models.decoding.hypothesis import Limits
from models.decoding.stepwise import greedy_search
from models.transformer import TranslationTransformer
from tokenizer.base import BaseTokenizer
from translation.loading import load_run
from translation.translator import pad_sources
from utils.cli import Parser, positive, run_main
from utils.errors import UserError
from utils.machine import computes_bf16

AT_LEAST = 8  # sentences of a round, so that batches of one are not measured by a single sentence
SOURCE_TOKENS = (20, 40)  # of a random source, from and to
NO_RATIO = 999.0  # the length of a source sets no limit
MARIAN = "post-norm, sinusoids in halves of base 10000, biases, one tied vocabulary"
TRAINED = "small"  # the size that is trained where no run is given
PEERS = ("transformers", "ctranslate2")
PRECISIONS = (*DTYPES, "int8")

Sentences = Sequence[Sequence[int]]  # ids, each with EOS
# A batch, a beam size (1: greedy), the most tokens of an output (with EOS) -> ids without EOS.
Translate = Callable[[Sentences, int, int], list[list[int]]]


@dataclass(frozen=True, slots=True)
class Weights:
    """What all systems share, in float32 on the CPU, with what it means."""

    model: TranslationTransformer
    config: ModelConfig
    tokenizer: BaseTokenizer
    device: torch.device


@dataclass(frozen=True, slots=True)
class Work:
    """Ids to translate, the longest output, and what they are in words.

    exactly: every output must have max_tokens tokens, or the speeds would be of different work.
    """

    sources: Sentences
    max_tokens: int
    words: str
    exactly: bool


# ------------------------------------------------------------------------------------------ systems


def ours(weights: Weights, precision: str) -> Translate:
    tokenizer, device = weights.tokenizer, weights.device
    model = copy.deepcopy(weights.model).to(device, DTYPES[precision]).eval()
    bos_id, eos_id = tokenizer.bos_id, tokenizer.eos_id

    def translate(batch: Sentences, beam_size: int, max_tokens: int) -> list[list[int]]:
        src = pad_sources(batch, tokenizer.pad_id).to(device)
        limits = Limits(bos_id=bos_id, eos_id=eos_id, max_len=max_tokens, max_len_ratio=NO_RATIO)
        if beam_size == 1:
            found = greedy_search(model, src, limits)
        else:
            found = beam_search(model, src, limits, beam_size=beam_size, n_best=1)
        return [list(best.ids) for [best] in found]

    return translate


def hugging_face(weights: Weights, precision: str) -> Translate:
    pad_id, eos_id, device = weights.tokenizer.pad_id, weights.tokenizer.eos_id, weights.device
    model = to_marian(weights).to(device, DTYPES[precision]).eval()

    def translate(batch: Sentences, beam_size: int, max_tokens: int) -> list[list[int]]:
        src = pad_sources(batch, pad_id).to(device)
        out = model.generate(
            input_ids=src,
            attention_mask=(src != pad_id).long(),
            num_beams=beam_size,
            do_sample=False,
            max_new_tokens=max_tokens,
            # generate warns of options for beams where there is one
            **({"length_penalty": 0.0} if beam_size > 1 else {}),
        )
        rows = [row[1:] for row in out.tolist()]  # without the start id
        return [row[: row.index(eos_id)] if eos_id in row else row for row in rows]

    return translate


def to_marian(weights: Weights) -> Any:
    """A MarianMTModel with the same weights.

    Raises UserError for a model that it is not, ImportError without the package.
    """
    config, tokenizer = weights.config, weights.tokenizer
    alike = (config.norm, config.position, config.bias, config.tie_embeddings, config.backend)
    if alike != ("post", Sinusoidal(layout="half"), True, "all", "scratch"):
        raise UserError(f"a MarianMTModel has {MARIAN}; this model has not")
    marian = marian_model(
        config,
        vocab_size=tokenizer.src_vocab_size,
        max_position_embeddings=1024,
        pad_token_id=tokenizer.pad_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_id,
        forced_eos_token_id=None,
        decoder_start_token_id=tokenizer.bos_id,
    )
    missing, unexpected = marian.load_state_dict(marian_weights(weights.model), strict=False)
    made = ("embed_positions.weight", "final_logits_bias")
    if unexpected or not all(name.endswith(made) for name in missing):
        names = [*missing, *unexpected][:3]
        raise UserError(f"this version of transformers has other names of weights: {names}")
    marian.tie_weights()
    return marian


def marian_weights(model: TranslationTransformer) -> dict[str, torch.Tensor]:
    """The state_dict of a MarianMTModel, but for its fixed sinusoids and its bias of zeros."""
    tied = ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head")
    renamed = {f"{name}.weight": model.src_embedding.weight.detach() for name in tied}
    inner = {
        "feed_forward.linear1": ["fc1"],
        "feed_forward.linear2": ["fc2"],
        "self_attention.qkv_proj": [f"self_attn.{part}_proj" for part in "qkv"],
        "self_attention.out_proj": ["self_attn.out_proj"],
        "cross_attention.q_proj": ["encoder_attn.q_proj"],
        "cross_attention.kv_proj": [f"encoder_attn.{part}_proj" for part in "kv"],
        "cross_attention.out_proj": ["encoder_attn.out_proj"],
        "norm1": ["self_attn_layer_norm"],
    }
    norms = {
        "encoder": {"norm2": ["final_layer_norm"]},
        "decoder": {"norm2": ["encoder_attn_layer_norm"], "norm3": ["final_layer_norm"]},
    }
    for name, tensor in model.state_dict().items():
        stack, _, rest = name.partition(".layers.")
        if not rest:
            continue
        layer, _, rest = rest.partition(".")
        module, _, kind = rest.rpartition(".")
        targets = {**inner, **norms[stack]}[module]
        for target, part in zip(targets, tensor.chunk(len(targets))):
            renamed[f"model.{stack}.layers.{layer}.{target}.{kind}"] = part
    return renamed


def ctranslate2(weights: Weights, precision: str, folder: Path, stack: ExitStack) -> Translate:
    """`folder` holds the converted model, or nothing yet. `stack` ends its process."""
    tokenizer, device = weights.tokenizer, weights.device.type
    library = require_ctranslate2()
    if not any(folder.iterdir()):
        convert(weights.model, weights.config, tokenizer, folder, quantization="float32")
    if precision not in library.get_supported_compute_types(device):
        raise UserError(f"it does not compute in {precision} on this machine")
    translator = TranslatorProcess(
        str(folder), device=device, compute_type=precision, intra_threads=torch.get_num_threads()
    )
    stack.callback(translator.close)
    pieces = tokenizer.src_pieces(range(tokenizer.src_vocab_size))
    tgt_pieces = tokenizer.tgt_pieces(range(tokenizer.tgt_vocab_size))
    ids = {piece: i for i, piece in enumerate(tgt_pieces)}

    def translate(batch: Sentences, beam_size: int, max_tokens: int) -> list[list[int]]:
        found = translator.translate(
            [[pieces[i] for i in sentence] for sentence in batch],
            beam_size=beam_size,
            length_penalty=0,
            max_decoding_length=max_tokens,
            min_decoding_length=0,
            max_input_length=0,
        )
        return [[ids[piece] for piece in best] for best in found]

    return translate


@contextmanager
def systems_of(
    weights: Weights, peers: Sequence[str], precisions: Sequence[str]
) -> Iterator[tuple[dict[tuple[str, str], Translate], dict[str, str]]]:
    """What takes part, by name and precision, and why the others do not.

    Ours in float32 always does, and comes first.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        makers: dict[str, Callable[[Weights, str], Translate]] = {
            "ours": ours,
            "transformers": hugging_face,
            "ctranslate2": partial(ctranslate2, folder=Path(folder), stack=stack),
        }
        made: dict[tuple[str, str], Translate] = {}
        left_out: dict[str, str] = {}
        asked = [(name, precision) for precision in precisions for name in ("ours", *peers)]
        for name, precision in dict.fromkeys([("ours", "float32"), *asked]):
            if precision == "int8" and name != "ctranslate2":
                continue
            try:
                made[name, precision] = makers[name](weights, precision)
            except (ImportError, UserError) as error:
                left_out[f"{name}, {precision}"] = str(error)
        yield made, left_out


# -------------------------------------------------------------------------------- weights and work


def model_config(size: str) -> ModelConfig:
    """The shape that a MarianMTModel has too."""
    return ModelConfig(**SIZES[size].shape(), position=Sinusoidal(layout="half"), norm="post")


def random_weights(size: str, device: torch.device, seed: int) -> Weights:
    """Weights that never choose a special id, and with which the source decides what comes out."""
    config = model_config(size)
    tokenizer = cast(BaseTokenizer, Vocabulary(SIZES[size].vocab_size))
    torch.manual_seed(seed)
    model = build_model(config, tokenizer).eval()
    with torch.no_grad():
        model.src_embedding.weight[[UNK, PAD, BOS, EOS]] = 0.0
        for name, weight in model.named_parameters():
            if "cross_attention" in name:
                weight.mul_(2)
    return Weights(model, config, tokenizer, device)


def random_sources(n: int, vocab_size: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    lengths = [draw.randint(*SOURCE_TOKENS) for _ in range(n)]
    return [[*draw.choices(range(EOS + 1, vocab_size), k=length - 1), EOS] for length in lengths]


def train_briefly(steps: int, folder: Path, device: torch.device, seed: int) -> Path:
    """The folder of a run on the embedded corpus."""
    from training.run import train

    settings = {
        "tokenizer.vocab_size": SIZES[TRAINED].vocab_size,
        "data.max_len": 96,
        "data.batch_size": 2048,
        "data.cache_dir": folder / "cache",
        "optim.schedule": "cosine",
        "optim.schedule.warmup_steps": 100,
        "train.max_epochs": 1000,
        "train.max_steps": steps,
        "train.seed": seed,
        "train.device": device,
        "train.runs_dir": folder / "runs",
        "train.log_attention": False,
        "evaluate.bleu_every_epochs": 0,
        "decode.max_len": 96,
    }
    config = Config(name="bench_decode", model=model_config(TRAINED))
    config = apply_overrides(config, [f"{key}={value}" for key, value in settings.items()])
    logging.getLogger("ignite").setLevel(logging.CRITICAL)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("training").setLevel(logging.INFO)
    return train(config).run.path


def in_batches(sources: Sentences, batch_size: int) -> list[Sentences]:
    """A round's work: the first max(batch_size, AT_LEAST) sentences, in batches of like lengths."""
    chosen = sorted(sources[: max(batch_size, AT_LEAST)], key=len, reverse=True)
    return [chosen[start : start + batch_size] for start in range(0, len(chosen), batch_size)]


# -------------------------------------------------------------------------------------- comparisons


def compare(
    systems: Mapping[tuple[str, str], Translate],
    work: Work,
    beam_size: int,
    batch_size: int,
    **timing: Any,
) -> list[dict[str, Any]]:
    """A row for each system: its speed, and its outputs against those of ours in float32.

    `timing` is for common.in_turn. Raises UserError where an output has another length than the
    work asks for exactly.
    """
    outputs: dict[tuple[str, str], list[list[int]]] = {}
    batches = in_batches(work.sources, batch_size)

    def run(key: tuple[str, str], number: int) -> None:
        found = [systems[key](batch, beam_size, work.max_tokens) for batch in batches]
        outputs[key] = [ids for batch in found for ids in batch]

    taken = common.in_turn({" ".join(key): partial(run, key) for key in systems}, **timing)
    rows = []
    for (name, precision), ids in outputs.items():
        seconds, n_tokens = taken[f"{name} {precision}"], sum(map(len, ids))
        if work.exactly and any(len(sentence) != work.max_tokens for sentence in ids):
            what = f"an output has not {work.max_tokens} tokens; choose another --seed"
            raise UserError(f"{name} {precision}: {what}")
        same = [a == b for a, b in zip(ids, outputs["ours", "float32"])]
        rows.append(
            {
                "system": name,
                "precision": precision,
                "search": search_name(beam_size),
                "batch": len(batches[0]),
                "sentences": len(ids),
                "output_tokens": n_tokens,
                "sentences_per_second": spread([len(ids) / s for s in seconds]),
                "tokens_per_second": spread([n_tokens / s for s in seconds]),
                "same_tokens": sum(same) / len(ids),
                **{
                    f"ours_{ours}_over_it": ratio(seconds, taken[f"ours {ours}"])
                    for ours in DTYPES
                    if ("ours", ours) in systems
                },
                "seconds": seconds,
            }
        )
    return rows


def search_name(beam_size: int) -> str:
    return "greedy" if beam_size == 1 else f"beam {beam_size}"


def rows_markdown(data: Mapping[str, Any]) -> str:
    rows, sizes = data["rows"], data["model"]
    columns = {
        "system": "{system} {precision}",
        "batch": "{batch}",
        "sentences/s": "{sentences_per_second}",
        "output tokens/s": "{tokens_per_second.middle}",
    }
    for precision in DTYPES:
        if f"ours_{precision}_over_it" in rows[0]:
            columns[f"ours {precision} / it"] = f"{{ours_{precision}_over_it}}"
    columns["same tokens"] = "{same_tokens:.0%}"
    last = [row for row in rows if (row["system"], row["precision"]) == ("ours", "float32")][-1]
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    conditions = (
        f"d_model {sizes['d_model']}, {sizes['n_heads']} heads, d_ff {sizes['d_ff']}, "
        f"{sizes['n_encoder_layers']}+{sizes['n_decoder_layers']} layers, {sizes['norm']}-norm, "
        f"{sizes['position']['kind']} positions, vocabulary {data['vocabulary']:,}; "
        f"{data['work']}; ours writes {last['output_tokens'] / last['sentences']:.1f} tokens a "
        f"sentence. {len(last['seconds'])} rounds: medians (quartiles); ratios of speed within a "
        f"round; same tokens: sentences with the output of ours in float32. {versions}"
    )
    left_out = "".join(f"- left out: {name} ({why})\n" for name, why in data["left_out"].items())
    return f"{conditions}\n\n{table(rows, columns)}{left_out}"


def add_sections(
    report: Report, heading: str, weights: Weights, work: Work, args: Namespace
) -> None:
    """One section for each search, with all batch sizes."""
    timing = {"rounds": args.rounds, "warmup": args.warmup, "device": weights.device}
    with systems_of(weights, args.peers, args.precision) as (systems, left_out):
        taking_part = dict.fromkeys(name for name, _ in systems if name != "ours")
        same = {
            "max_tokens": work.max_tokens,
            "work": work.words,
            "model": to_dict(Config(model=weights.config))["model"],
            "vocabulary": weights.tokenizer.tgt_vocab_size,
            "versions": {name: version(name) for name in taking_part},
            "left_out": left_out,
        }
        for beam_size in dict.fromkeys(args.beam):
            rows = [
                row
                for batch_size in dict.fromkeys(args.batch)
                for row in compare(systems, work, beam_size, batch_size, **timing)
            ]
            search = search_name(beam_size)
            data = {"search": search, **same, "rows": rows}
            report.add(f"{heading}: {search}", rows_markdown(data), data)


# ------------------------------------------------------------------------------------- command line


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
    what = "of the fixed length (default: 40)"
    add("--tokens", type=positive, default=40, metavar="N", help=what)
    real = parser.add_mutually_exclusive_group()
    what = "of the real sentences"
    real.add_argument("--model_path", type=Path, metavar="RUN_OR_CHECKPOINT", help=what)
    what = "default: 300; 0: no real sentences without a run"
    real.add_argument("--train_steps", type=int, default=300, metavar="N", help=what)
    common.add_arguments(parser, "bench_decode", rounds=7, draws=True)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    device = common.use_machine(args.device, args.threads)
    if args.precision is None:
        args.precision = [p for p in PRECISIONS if p != "bfloat16" or computes_bf16(device)]
    report = Report("bench_decode", "Decoding speed", args, device)
    n_sentences = max(*args.batch, AT_LEAST)
    for size in dict.fromkeys(args.size):
        weights = random_weights(size, device, args.seed)
        sources = random_sources(n_sentences, weights.tokenizer.src_vocab_size, args.seed)
        first, last = SOURCE_TOKENS
        words = f"random weights, random sources of {first} to {last} tokens"
        work = Work(sources, args.tokens, words, exactly=True)
        add_sections(report, f"{size}, {args.tokens} tokens", weights, work, args)
    if args.model_path is None and not args.train_steps:
        return
    run = args.model_path
    if run is None:
        run = train_briefly(args.train_steps, args.output_dir, device, args.seed)
    loaded = load_run(run, runs_dir=args.output_dir)
    corpus = build_corpus(loaded.config.data)
    split = corpus.test[0]
    sources = loaded.tokenizer.encode_src_batch(corpus.load(split).src[:n_sentences])
    mean = sum(map(len, sources)) / len(sources)
    words = f"{loaded.checkpoint.name}, update {loaded.step}; sentences of split {split}, "
    words += f"{mean:.1f} source tokens each"
    weights = Weights(loaded.model, loaded.config.model, loaded.tokenizer, device)
    work = Work(sources, loaded.config.decode.max_len, words, exactly=False)
    add_sections(report, f"real sentences, {loaded.run.path.name}", weights, work, args)


if __name__ == "__main__":
    run_main(main)
