"""Decoding speed against other libraries with the same weights, in one run: `python
benchmarks/bench_decode.py`.

Our search, Hugging Face's MarianMTModel.generate and CTranslate2 translate the same batches of ids,
in turn, round by round: sentences and output tokens a second, and how many sentences get the same
tokens as from ours in float32. Written into --output_dir: bench_decode.md and bench_decode.json.
Two kinds of work:

    fixed length   random weights and sources, --tokens of output for every sentence. The embeddings
    of the special
                   ids, which are tied with the output, are zero: their logit is 0, never the best
                   of a vocabulary.
    real           sentences of a corpus and the model of --model_path, or a small model trained for
    --train_steps

No length penalty anywhere, so that all search for the same thing: the most probable translation.
"bfloat16" has its weights cast; int8 is CTranslate2's alone. Each has --threads threads
(CTranslate2: one translation at a time).
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import logging
import random
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

if (
    not __package__
):  # run as a file: the root of the repository is where imports begin, not this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from benchmarks import common
from benchmarks.common import DTYPES, Report, figure
from benchmarks.ctranslate2_process import TranslatorProcess
from benchmarks.train_setup import SIZES
from checkpoints.ctranslate2 import convert, require_ctranslate2
from configs.schema import (
    Config,
    Cosine,
    DataConfig,
    DecodeConfig,
    EvaluateConfig,
    ModelConfig,
    OptimConfig,
    Phrasebook,
    Sinusoidal,
    Subword,
    TrainConfig,
)
from configs.serialize import to_dict
from data.corpora.build import build_corpus
from models.build import build_model
from models.decoding.beam import beam_search
from models.decoding.greedy import greedy_search
from models.transformer import TranslationTransformer
from tokenizer.base import BaseTokenizer
from translation.translator import load_run, pad_sources
from utils.cli import Parser, positive, run_main
from utils.errors import UserError
from utils.tables import markdown_table

UNK, PAD, BOS, EOS = range(4)
AT_LEAST = 8  # sentences of a round, so that batches of one are not measured by a single sentence
SOURCE_TOKENS = (20, 40)  # of a random source, from and to
NO_RATIO = 1e6  # the length of a source sets no limit
MARIAN = "post-norm, sinusoids in halves of base 10000, biases, one tied vocabulary"
TRAINED = "small"  # the size that is trained where no run is given
PEERS = ("transformers", "ctranslate2")
PRECISIONS = (*DTYPES, "int8")

Batches = Sequence[Sequence[Sequence[int]]]  # batches of sentences of ids, each with EOS


class LeftOut(Exception):
    """Why a system cannot take part."""


@dataclass(frozen=True, slots=True)
class Search:
    """What every system is asked for: one translation of at most max_tokens tokens (EOS included)."""

    beam_size: int
    max_tokens: int

    def __str__(self) -> str:
        return "greedy" if self.beam_size == 1 else f"beam {self.beam_size}"


@dataclass(frozen=True, slots=True)
class Subject:
    """The weights that all systems share, in float32 on the CPU, with what they mean."""

    model: TranslationTransformer
    config: ModelConfig
    tokenizer: BaseTokenizer
    device: torch.device


@dataclass(frozen=True, slots=True)
class Work:
    """Ids to translate, the longest output, and what they are in words."""

    sources: Sequence[Sequence[int]]
    max_tokens: int
    words: str


# ------------------------------------------------------------------------------------------ systems

Translate = Callable[
    [Sequence[Sequence[int]], Search], list[list[int]]
]  # a batch -> ids without EOS


def ours(subject: Subject, precision: str) -> Translate:
    tokenizer, device = subject.tokenizer, subject.device
    model = copy.deepcopy(subject.model).to(device, _torch_type(precision)).eval()

    def translate(batch: Sequence[Sequence[int]], search: Search) -> list[list[int]]:
        src = pad_sources(batch, tokenizer.pad_id).to(device)
        shared: dict[str, Any] = {
            "bos_id": tokenizer.bos_id,
            "eos_id": tokenizer.eos_id,
            "max_len": search.max_tokens,
            "max_len_ratio": NO_RATIO,
        }
        if search.beam_size == 1:
            found = greedy_search(model, src, **shared)
        else:
            beams = beam_search(
                model, src, **shared, beam_size=search.beam_size, n_best=1, alpha=0.0
            )
            found = [best for [best] in beams]
        return [list(hypothesis.ids) for hypothesis in found]

    return translate


def hugging_face(subject: Subject, precision: str) -> Translate:
    tokenizer, device = subject.tokenizer, subject.device
    dtype = _torch_type(precision)
    model = to_marian(subject).to(device, dtype).eval()

    def translate(batch: Sequence[Sequence[int]], search: Search) -> list[list[int]]:
        src = pad_sources(batch, tokenizer.pad_id).to(device)
        out = model.generate(
            input_ids=src,
            attention_mask=(src != tokenizer.pad_id).long(),
            num_beams=search.beam_size,
            do_sample=False,
            max_new_tokens=search.max_tokens,
            # generate warns of options for beams where there is one
            **({"length_penalty": 0.0} if search.beam_size > 1 else {}),
        )
        rows = (row[1:] for row in out.tolist())  # without the start id
        return [
            row[: row.index(tokenizer.eos_id)] if tokenizer.eos_id in row else row for row in rows
        ]

    return translate


def to_marian(subject: Subject) -> Any:
    """A MarianMTModel with the same weights. Raises LeftOut for a model that it is not, and without
    the package.
    """
    config, tokenizer, model = subject.config, subject.tokenizer, subject.model
    alike = (config.norm, config.position, config.bias, config.tie_embeddings, config.backend)
    if alike != ("post", Sinusoidal(layout="half"), True, "all", "scratch"):
        raise LeftOut(f"a MarianMTModel has {MARIAN}; this model has not")
    library = _package("transformers")
    settings = library.MarianConfig(
        vocab_size=tokenizer.src_vocab_size,
        d_model=config.d_model,
        encoder_layers=config.n_encoder_layers,
        decoder_layers=config.n_decoder_layers,
        encoder_attention_heads=config.n_heads,
        decoder_attention_heads=config.n_heads,
        encoder_ffn_dim=config.d_ff,
        decoder_ffn_dim=config.d_ff,
        activation_function=config.activation,
        scale_embedding=True,
        max_position_embeddings=1024,
        pad_token_id=tokenizer.pad_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_id,
        forced_eos_token_id=None,
        decoder_start_token_id=tokenizer.bos_id,
    )
    marian = library.MarianMTModel(settings)
    missing, unexpected = marian.load_state_dict(marian_weights(model), strict=False)
    if unexpected or any(
        not name.endswith(("embed_positions.weight", "final_logits_bias")) for name in missing
    ):
        raise LeftOut(
            f"this version of transformers has other names of weights: {[*missing, *unexpected][:3]}"
        )
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


def ctranslate2(subject: Subject, precision: str, folder: Path, stack: ExitStack) -> Translate:
    """`folder` holds the converted model; it is converted where the folder is empty. `stack` ends
    its process.
    """
    tokenizer, device = subject.tokenizer, subject.device
    try:
        library = require_ctranslate2()
        if not any(folder.iterdir()):
            convert(subject.model, subject.config, tokenizer, folder, quantization="float32")
    except UserError as error:
        raise LeftOut(str(error)) from error
    if precision not in library.get_supported_compute_types(device.type):
        raise LeftOut(f"it does not compute in {precision} on this machine")
    translator = TranslatorProcess(
        str(folder), device=device.type, compute_type=precision, threads=torch.get_num_threads()
    )
    stack.callback(translator.close)
    pieces = tokenizer.src_pieces(range(tokenizer.src_vocab_size))
    ids = {
        piece: i for i, piece in enumerate(tokenizer.tgt_pieces(range(tokenizer.tgt_vocab_size)))
    }

    def translate(batch: Sequence[Sequence[int]], search: Search) -> list[list[int]]:
        found = translator.translate(
            [[pieces[i] for i in sentence] for sentence in batch],
            beam_size=search.beam_size,
            length_penalty=0,
            max_decoding_length=search.max_tokens,
            min_decoding_length=0,
            max_input_length=0,
        )
        return [[ids[piece] for piece in best] for best in found]

    return translate


def _torch_type(precision: str) -> torch.dtype:
    if precision not in DTYPES:
        raise LeftOut(f"no {precision} here")
    return DTYPES[precision]


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise LeftOut(str(error)) from error


@contextmanager
def systems_of(
    subject: Subject, peers: Sequence[str], precisions: Sequence[str]
) -> Iterator[tuple[dict[tuple[str, str], Translate], dict[str, str]]]:
    """What takes part, by name and precision (ours in float32 always, and first), and why the
    others do not.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        makers: dict[str, Callable[[str], Translate]] = {
            "ours": lambda precision: ours(subject, precision),
            "transformers": lambda precision: hugging_face(subject, precision),
            "ctranslate2": lambda precision: ctranslate2(subject, precision, Path(folder), stack),
        }
        made: dict[tuple[str, str], Translate] = {}
        left_out: dict[str, str] = {}
        for precision in dict.fromkeys(["float32", *precisions]):
            for name in ("ours", *peers):
                if (precision == "int8" and name != "ctranslate2") or (
                    precision not in precisions and name != "ours"
                ):
                    continue
                try:
                    made[name, precision] = makers[name](precision)
                except LeftOut as error:
                    left_out[f"{name}, {precision}"] = str(error)
        yield made, left_out


# ----------------------------------------------------------------------------------------- subjects


class Vocabulary:
    """A joint vocabulary whose pieces are numbers."""

    shared_vocab = True
    unk_id, pad_id, bos_id, eos_id = UNK, PAD, BOS, EOS

    def __init__(self, size: int) -> None:
        self.src_vocab_size = self.tgt_vocab_size = size

    def src_pieces(self, ids: Sequence[int]) -> list[str]:
        return [str(i) for i in ids]

    tgt_pieces = src_pieces


def model_config(size: str) -> ModelConfig:
    """The shape that a MarianMTModel has too."""
    chosen = SIZES[size]
    return ModelConfig(
        position=Sinusoidal(layout="half"),
        d_model=chosen.d_model,
        n_heads=chosen.n_heads,
        n_encoder_layers=chosen.n_layers,
        n_decoder_layers=chosen.n_layers,
        d_ff=chosen.d_ff,
        norm="post",
        tie_embeddings="all",
    )


def random_subject(size: str, device: torch.device, seed: int) -> Subject:
    """Random weights that never choose a special id, and with which the source decides what comes
    out.
    """
    config = model_config(size)
    tokenizer = cast(BaseTokenizer, Vocabulary(SIZES[size].vocab_size))
    torch.manual_seed(seed)
    model = build_model(config, tokenizer).eval()
    with torch.no_grad():
        model.src_embedding.weight[[UNK, PAD, BOS, EOS]] = 0.0
        for name, weight in model.named_parameters():
            if "cross_attention" in name:
                weight.mul_(2)
    return Subject(model, config, tokenizer, device)


def random_sources(n: int, vocab_size: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    lengths = [draw.randint(*SOURCE_TOKENS) for _ in range(n)]
    return [[*draw.choices(range(EOS + 1, vocab_size), k=length - 1), EOS] for length in lengths]


def train_briefly(steps: int, size: str, folder: Path, device: torch.device, seed: int) -> Path:
    """The folder of a run on the embedded corpus."""
    from training.run import train

    config = Config(
        name="bench_decode",
        model=model_config(size),
        tokenizer=Subword(vocab_size=SIZES[size].vocab_size),
        data=DataConfig(
            corpus=Phrasebook(), max_len=96, batch_size=2048, cache_dir=str(folder / "cache")
        ),
        optim=OptimConfig(schedule=Cosine(lr=1e-3, warmup_steps=100)),
        train=TrainConfig(
            max_epochs=1000,
            max_steps=steps,
            seed=seed,
            device=str(device),
            runs_dir=str(folder / "runs"),
            log_attention=False,
        ),
        evaluate=EvaluateConfig(bleu_every_epochs=0),
        decode=DecodeConfig(max_len=96),
    )
    logging.getLogger("ignite").setLevel(logging.CRITICAL)
    return train(config, say=common.say).run.path


def in_batches(sources: Sequence[Sequence[int]], batch_size: int) -> Batches:
    """A round's work: the first max(batch_size, AT_LEAST) sentences, batches of like lengths as a
    translator has.
    """
    chosen = sorted(sources[: max(batch_size, AT_LEAST)], key=len, reverse=True)
    return [chosen[start : start + batch_size] for start in range(0, len(chosen), batch_size)]


# -------------------------------------------------------------------------------------- comparisons


def compare(
    systems: Mapping[tuple[str, str], Translate],
    batches: Batches,
    search: Search,
    *,
    rounds: int,
    warmup: int,
    device: torch.device,
    exactly: bool,
) -> list[dict[str, Any]]:
    """A row for each system: its speed, and its outputs against those of ours in float32.

    exactly: every output must have search.max_tokens tokens, or the speeds would be of different
    work.
    """
    outputs: dict[tuple[str, str], list[list[int]]] = {}

    def runner(key: tuple[str, str]) -> Callable[[int], None]:
        def run(number: int) -> None:
            outputs[key] = [ids for batch in batches for ids in systems[key](batch, search)]

        return run

    runs = {" ".join(key): runner(key) for key in systems}
    taken = common.in_turn(runs, rounds=rounds, warmup=warmup, device=device)
    reference = outputs["ours", "float32"]
    rows = []
    for key, ids in outputs.items():
        seconds, n_tokens = taken[" ".join(key)], sum(map(len, ids))
        if exactly and any(len(sentence) != search.max_tokens for sentence in ids):
            raise UserError(
                f"{' '.join(key)}: an output has not {search.max_tokens} tokens; choose another --seed"
            )
        row = {
            "system": key[0],
            "precision": key[1],
            "search": str(search),
            "batch": len(batches[0]),
            "sentences": len(ids),
            "output_tokens": n_tokens,
            "sentences_per_second": common.spread([len(ids) / s for s in seconds]),
            "tokens_per_second": common.spread([n_tokens / s for s in seconds]),
            "same_tokens": sum(a == b for a, b in zip(ids, reference)) / len(ids),
        }
        for precision in DTYPES:
            if ("ours", precision) in systems:
                row[f"ours_{precision}_over_it"] = common.ratio(seconds, taken[f"ours {precision}"])
        rows.append(
            {
                key: dataclasses.asdict(v) if isinstance(v, common.Spread) else v
                for key, v in row.items()
            }
            | {"seconds": seconds}
        )
    return rows


def rows_markdown(data: Mapping[str, Any]) -> str:
    rows, sizes = data["rows"], data["model"]
    ratios = [precision for precision in DTYPES if f"ours_{precision}_over_it" in rows[0]]
    header = ["system", "batch", "sentences/s", "output tokens/s"]
    header += [*(f"ours {precision} / it" for precision in ratios), "same tokens"]
    table = [
        [
            f"{row['system']} {row['precision']}",
            row["batch"],
            shown(row["sentences_per_second"]),
            figure(row["tokens_per_second"]["median"]),
            *(shown(row[f"ours_{precision}_over_it"]) for precision in ratios),
            f"{row['same_tokens']:.0%}",
        ]
        for row in rows
    ]
    layers = f"{sizes['n_encoder_layers']}+{sizes['n_decoder_layers']} layers"
    last = [row for row in rows if (row["system"], row["precision"]) == ("ours", "float32")][-1]
    conditions = (
        f"d_model {sizes['d_model']}, {sizes['n_heads']} heads, d_ff {sizes['d_ff']}, {layers}, {sizes['norm']}-norm, "
        f"{sizes['position']['kind']} positions, vocabulary {data['vocabulary']:,}; {data['work']}; ours writes "
        f"{last['output_tokens'] / last['sentences']:.1f} tokens a sentence. {len(last['seconds'])} rounds: medians "
        "(quartiles); ratios of speed within a round; same tokens: sentences with the output of ours in float32. "
        + ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    )
    left_out = "".join(f"- left out: {name} ({why})\n" for name, why in data["left_out"].items())
    return f"{conditions}\n\n{markdown_table(header, table)}{left_out}"


def shown(spread: Mapping[str, float]) -> str:
    return str(common.Spread(**spread))


def add_sections(
    report: Report, heading: str, subject: Subject, work: Work, args: Namespace, *, exactly: bool
) -> None:
    """One section for each search, with all batch sizes."""
    with systems_of(subject, args.peers, args.precision) as (systems, left_out):
        taking_part = dict.fromkeys(name for name, _ in systems if name != "ours")
        for beam_size in dict.fromkeys(args.beam):
            search = Search(beam_size, work.max_tokens)
            rows: list[dict[str, Any]] = []
            for batch_size in dict.fromkeys(args.batch):
                rows += compare(
                    systems,
                    in_batches(work.sources, batch_size),
                    search,
                    rounds=args.rounds,
                    warmup=args.warmup,
                    device=subject.device,
                    exactly=exactly,
                )
            data = {
                "search": str(search),
                "max_tokens": work.max_tokens,
                "work": work.words,
                "model": to_dict(Config(model=subject.config))["model"],
                "vocabulary": subject.tokenizer.tgt_vocab_size,
                "versions": {name: version(name) for name in taking_part},
                "rows": rows,
                "left_out": left_out,
            }
            report.add(f"{heading}: {search}", rows_markdown(data), data)


# ------------------------------------------------------------------------------------- command line


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = Parser(
        prog="bench_decode.py",
        description="Decoding speed of our search and of other libraries' searches.",
    )
    parser.add_argument(
        "--size", nargs="*", choices=SIZES, default=["small"], help="fixed length (default: small)"
    )
    parser.add_argument(
        "--precision",
        nargs="+",
        choices=PRECISIONS,
        help="default: float32 and int8, and bfloat16 where the machine computes in it; ours in float32 always runs",
    )
    parser.add_argument(
        "--peers", nargs="*", choices=PEERS, default=list(PEERS), help="default: all"
    )
    parser.add_argument(
        "--beam", nargs="+", type=positive, default=[1, 5], metavar="N", help="default: 1 5"
    )
    parser.add_argument(
        "--batch",
        nargs="+",
        type=positive,
        default=[1, 32, 128],
        metavar="N",
        help="default: 1 32 128",
    )
    parser.add_argument(
        "--tokens", type=positive, default=40, metavar="N", help="of the fixed length (default: 40)"
    )
    real = parser.add_mutually_exclusive_group()
    real.add_argument(
        "--model_path", type=Path, metavar="RUN_OR_CHECKPOINT", help="of the real sentences"
    )
    real.add_argument(
        "--train_steps",
        type=int,
        default=300,
        metavar="N",
        help="default: 300; 0: no real sentences without a run",
    )
    parser.add_argument("--rounds", type=positive, default=7, metavar="N", help="default: 7")
    parser.add_argument(
        "--warmup",
        type=positive,
        default=1,
        metavar="N",
        help="rounds that do not count (default: 1)",
    )
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="CPU threads (default: torch's choice)"
    )
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda, cuda:N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/bench_decode"), metavar="DIR")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    device = common.use_machine(args.device, args.threads)
    if args.precision is None:
        args.precision = [
            "float32",
            *(["bfloat16"] if common.computes_bf16(device) else []),
            "int8",
        ]
    settings = {
        key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()
    }
    report = Report(
        args.output_dir, "bench_decode", title="Decoding speed", device=device, settings=settings
    )
    n_sentences = max(*args.batch, AT_LEAST)
    for size in dict.fromkeys(args.size):
        subject = random_subject(size, device, args.seed)
        sources = random_sources(n_sentences, subject.tokenizer.src_vocab_size, args.seed)
        first, last = SOURCE_TOKENS
        work = Work(
            sources, args.tokens, f"random weights, random sources of {first} to {last} tokens"
        )
        add_sections(report, f"{size}, {args.tokens} tokens", subject, work, args, exactly=True)
    if args.model_path is None and not args.train_steps:
        return
    run = args.model_path or train_briefly(
        args.train_steps, TRAINED, args.output_dir, device, args.seed
    )
    loaded = load_run(run, runs_dir=args.output_dir)
    corpus = build_corpus(loaded.config.data)
    split = corpus.test[0]
    sources = loaded.tokenizer.encode_src_batch(corpus.load(split).src[:n_sentences])
    mean = sum(map(len, sources)) / len(sources)
    words = f"{loaded.checkpoint.name}, update {loaded.step}; sentences of split {split}, {mean:.1f} source tokens each"
    subject = Subject(loaded.model, loaded.config.model, loaded.tokenizer, device)
    work = Work(sources, loaded.config.decode.max_len, words)
    add_sections(
        report, f"real sentences, {loaded.run.path.name}", subject, work, args, exactly=False
    )


if __name__ == "__main__":
    run_main(main)
