"""Converts a Marian model of transformers, once, to an exported run of this project.

Its folder is as `save_pretrained` writes it: config.json, model.safetensors or pytorch_model.bin,
and the tokenizer's files. The run is kept beside the hub's cache, in HF_HOME/fr2en/NAME-CHECKSUM.
"""

import hashlib
import json
import re
from collections import ChainMap
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from checkpoints.content import CONFIG, TOKENIZER, write_safetensors
from checkpoints.ctranslate2 import NEVER
from checkpoints.run import WEIGHTS
from checkpoints.transformers_weights import BIAS, EMBEDDINGS, SHARED, to_ours, to_theirs
from configs import schema
from configs.schema import Config, DataConfig, DecodeConfig, ModelConfig, ParallelFiles
from configs.serialize import from_dict
from models.build import build_model
from models.positional_encodings.sinusoidal import sinusoid_table
from tokenizer.base import BaseTokenizer
from tokenizer.build import load_tokenizer
from tokenizer.marian import OPTIONAL_FILES, REQUIRED_FILES, FrEnTokenizer
from utils.errors import ConfigError, UserError, one_line
from utils.files import made_once
from utils.hub import fetch

CONVERTER = 2  # raise it when the same model would become another run
OURS = "fr2en"  # in config.json of a model that this project exported: its whole configuration
ZERO_START = "fr2en_zero_start"  # in config.json
PICKLED = "pytorch_model.bin"
GENERATION = "generation_config.json"
REMEDY = "give a local folder with its files, or copy a filled Hugging Face cache (HF_HOME)"

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "swish": "silu"}
# The values that config.json must have, and its defaults.
NEEDED: dict[str, tuple[Any, Any]] = {
    "model_type": ("marian", None),
    "scale_embedding": (True, False),
    "static_position_embeddings": (True, True),
    "normalize_before": (False, False),
    "normalize_embedding": (False, False),
    "add_final_layer_norm": (False, False),
}
# Settings of its search that are not taken over, with the values that have no effect.
WITHOUT_EQUAL: dict[str, tuple[Any, ...]] = {
    "do_sample": (None, False),
    "num_beam_groups": (None, 1),
    "guidance_scale": (None, 1.0),
    "sequence_bias": (None, []),
    "forced_decoder_ids": (None, []),
    "exponential_decay_length_penalty": (None,),
    "forced_bos_token_id": (None,),
    "begin_suppress_tokens": (None, []),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "repetition_penalty": (None, 1.0),
    "encoder_repetition_penalty": (None, 1.0),
    "watermarking_config": (None,),
    "stop_strings": (None, []),
    "early_stopping": (None, False, "never"),
}
POSITIONS = re.compile(r"model\.(encoder|decoder)\.embed_positions\.weight")


def is_of_transformers(folder: Path) -> bool:
    """Whether a folder holds a model of transformers, of any architecture.

    Where config.json cannot be read, Marian's vocabulary beside it is the sign.
    """
    try:
        said = _read_json(folder / CONFIG)
    except UserError:
        return (folder / REQUIRED_FILES[-1]).is_file()
    return not said.keys().isdisjoint({"model_type", "architectures"})


def fetch_marian(name: str) -> Path:
    """The folder of a model on the hub, from the cache or fetched into it. Raises UserError."""
    required = "config.json", f"{WEIGHTS}|{PICKLED}", f"{TOKENIZER}/*|{REQUIRED_FILES[-1]}"
    optional = GENERATION, *REQUIRED_FILES, *OPTIONAL_FILES
    return fetch(name, required, optional, what=f"the model {name}", remedy=REMEDY)


def marian_run(folder: Path, source: str) -> Path:
    """The exported run of a model's folder, made if there is none yet.

    `source` is what the user named: the folder, or a name on the hub. The run takes the model's
    decode settings that have an equal here. Several processes at once make one run. Raises
    UserError naming what the model has that a run cannot have; then nothing is written.
    """
    from huggingface_hub import constants

    name = re.sub(r"[^\w.-]", "_", Path(source).name).strip("._") or "marian"
    name = name.encode()[:100].decode(errors="ignore")  # a file's name has at most 255 bytes
    home = Path(constants.HF_HOME) / OURS
    run = home / f"{name}-{_checksum(folder)[:16]}"
    if run.is_dir():
        return run
    raw = _read_json(folder / CONFIG)
    tokenizer: BaseTokenizer
    if ZERO_START in raw:
        raise UserError(f"{folder}: written with --zero_start, for other programs: name the run")
    if OURS in raw:
        # Where transformers saved it again, the tokenizer's folder is missing.
        again = not (folder / TOKENIZER).is_dir() and (folder / REQUIRED_FILES[-1]).is_file()
        tokenizer = FrEnTokenizer.plain(folder) if again else load_tokenizer(folder / TOKENIZER)
        try:
            config = from_dict(raw[OURS])
        except ConfigError as error:
            raise UserError(f"{folder / CONFIG}: {OURS}: {error}") from None
        generation: Mapping[str, Any] = {}
    else:
        for key, (needed, absent) in NEEDED.items():
            if (value := raw.get(key, absent)) != needed:
                _refuse(folder, key, value, f"only {needed!r} is known here")
        tokenizer = FrEnTokenizer.plain(folder)
        path = folder / GENERATION
        generation = ChainMap(_read_json(path) if path.is_file() else {}, dict(raw))
        config = _config(raw, generation, tokenizer, folder, name, source)
    weights = _read_weights(folder)
    with torch.device("meta"):  # config.json may ask for more than fits into memory
        shapes = to_theirs(build_model(config.model, tokenizer).state_dict(), config.model)
    if SHARED not in shapes and (table := weights.pop(SHARED, None)) is not None:
        for name in EMBEDDINGS if raw.get("share_encoder_decoder_embeddings", True) else ():
            weights.setdefault(name, table)  # where the output alone has a table of its own
    ours = _checked(weights, shapes, config.model, folder)
    model = build_model(config.model, tokenizer)
    model.load_state_dict(ours)
    _check_ties(weights, to_theirs(model.state_dict(), config.model), folder)
    if generation.get("renormalize_logits") is True:  # without padding, which Marian's own lack
        model.output.bias.data[tokenizer.pad_id] = NEVER
    write = partial(write_safetensors, model, config, tokenizer, {"epoch": 0, "step": 0})
    return made_once(run, write, is_whole=Path.is_dir, stale=re.escape(run.name))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except (OSError, RecursionError, TypeError, ValueError) as error:
        raise UserError(f"{path}: {one_line(error)}") from None


def _refuse(folder: Path, key: str, value: Any, why: str, file: str = CONFIG) -> NoReturn:
    raise UserError(f"{folder / file}: {key} = {value!r}: {why}")


def _checksum(folder: Path) -> str:
    """SHA-256 of all that decides the run."""
    names = CONFIG, GENERATION, *REQUIRED_FILES, *OPTIONAL_FILES
    files = [*(folder / name for name in names), *sorted((folder / TOKENIZER).glob("*"))]
    files.append(_weights_file(folder))
    digest = hashlib.sha256(f"{CONVERTER}".encode())
    for path in filter(Path.is_file, files):
        with path.open("rb") as file:
            digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


# ------------------------------------------------------------------------------------ configuration


def _config(
    raw: Mapping[str, Any],
    generation: ChainMap[str, Any],
    tokenizer: FrEnTokenizer,
    folder: Path,
    name: str,
    source: str,
) -> Config:
    """Our configuration of a model and its tokenizer."""
    from transformers import MarianConfig  # here: it takes seconds to import

    try:
        theirs = MarianConfig.from_dict(dict(raw))
    except Exception as error:  # its own kinds, for a value of another type
        raise UserError(f"{folder / CONFIG}: {one_line(error)}") from None
    _check_ids(theirs, generation, tokenizer, folder)
    for key in ("attention_heads", "ffn_dim"):
        encoder, decoder = (getattr(theirs, f"{stack}_{key}") for stack in ("encoder", "decoder"))
        if encoder != decoder:
            _refuse(folder, f"decoder_{key}", decoder, f"must be encoder_{key} = {encoder}")
    if theirs.activation_function not in ACTIVATIONS:
        known = f"known are {', '.join(ACTIVATIONS)}"
        _refuse(folder, "activation_function", theirs.activation_function, known)
    for key, neutral in WITHOUT_EQUAL.items():
        if (value := generation.get(key)) not in neutral:
            why = "this project's search takes no such setting from a model: take it out"
            _refuse(folder, key, value, why, _origin(key, generation))
    for key in ("num_beams", "max_length", "max_new_tokens"):
        if type(value := generation.get(key) or 1) is not int:
            _refuse(folder, key, value, "must be an integer", _origin(key, generation))
    tie: Any = "none"
    if theirs.tie_word_embeddings:
        tie = "all" if theirs.share_encoder_decoder_embeddings else "target"
    longest = theirs.max_position_embeddings
    said = tokenizer.src_lang or "source", tokenizer.tgt_lang or "target"
    languages = [re.sub(r"[^\w-]", "_", language) for language in said]  # such as "cat+oci"
    src_lang, tgt_lang = languages if languages[0] != languages[1] else ("source", "target")
    try:
        # their length counts the start token
        most = generation.get("max_new_tokens") or (generation.get("max_length") or 257) - 1
        beam_size = generation.get("num_beams") or 1
        own = generation.maps[0] or generation  # which counts alone where it is there
        return Config(
            name=name,
            model=ModelConfig(
                position=schema.Sinusoidal(layout="half", max_positions=longest),
                d_model=theirs.d_model,
                n_heads=theirs.encoder_attention_heads,
                n_encoder_layers=theirs.encoder_layers,
                n_decoder_layers=theirs.decoder_layers,
                d_ff=theirs.encoder_ffn_dim,
                dropout=theirs.dropout,
                attention_dropout=theirs.attention_dropout,
                activation_dropout=theirs.activation_dropout,
                activation=ACTIVATIONS[theirs.activation_function],  # type: ignore[arg-type]
                norm="post",
                tie_embeddings=tie,
                output_bias=True,
            ),
            tokenizer=schema.Marian(name_or_path=source),
            data=DataConfig(
                corpus=ParallelFiles(),
                src_lang=src_lang,
                tgt_lang=tgt_lang,
                max_len=min(256, longest),
            ),
            decode=DecodeConfig(
                beam_size=beam_size,
                n_best=min(beam_size, DecodeConfig().n_best),
                length_penalty=1.0
                if (alpha := generation.get("length_penalty")) is None
                else alpha,
                max_len=min(most, longest),
                no_repeat_ngram_size=own.get("no_repeat_ngram_size") or 0,
            ),
        )
    except (ConfigError, TypeError) as error:
        raise UserError(f"{folder}, {CONFIG} or {GENERATION}: {error}") from None


def _origin(key: str, generation: ChainMap[str, Any]) -> str:
    """The file that a setting of the search is from."""
    return GENERATION if key in generation.maps[0] else CONFIG


def _check_ids(
    theirs: Any, generation: ChainMap[str, Any], tokenizer: FrEnTokenizer, folder: Path
) -> None:
    """Check that a search begins, ends and pads as ours does."""
    pad, eos = tokenizer.pad_id, tokenizer.eos_id
    sizes = tokenizer.src_vocab_size, tokenizer.tgt_vocab_size
    shared = theirs.share_encoder_decoder_embeddings
    allowed: dict[str, tuple[Any, ...]] = {
        "pad_token_id": (pad,),
        "eos_token_id": ([eos], eos),
        "decoder_start_token_id": (pad,),
        "forced_eos_token_id": (None, [eos], eos),
        "bad_words_ids": (None, [], [[pad]]),
        "suppress_tokens": (None, [], [pad]),
    }
    for key, values in allowed.items():
        value = generation.get(key, getattr(theirs, key, None))
        if value not in values:
            needed = f"with this tokenizer (</s> {eos}, padding {pad}) it must be {values[-1]}"
            _refuse(folder, key, value, needed, _origin(key, generation))
    found = theirs.vocab_size, theirs.vocab_size if shared else theirs.decoder_vocab_size
    for key, size, of_tokenizer in zip(("vocab_size", "decoder_vocab_size"), found, sizes):
        if size != of_tokenizer:
            _refuse(folder, key, size, f"the tokenizer has {of_tokenizer} pieces")
    if shared and not tokenizer.shared_vocab:
        why = "the tokenizer has two vocabularies"
        _refuse(folder, "share_encoder_decoder_embeddings", True, why)


# ------------------------------------------------------------------------------------------ weights


def _weights_file(folder: Path) -> Path:
    there = [folder / name for name in (WEIGHTS, PICKLED) if (folder / name).is_file()]
    if not there:
        raise UserError(f"{folder}: a transformers model without {WEIGHTS} or {PICKLED}")
    return there[0]


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """In float32. A pickled file is read as tensors and plain values; nothing is executed."""
    path = _weights_file(folder)
    try:
        if path.name == WEIGHTS:
            weights: Any = load_file(path)
        else:
            weights = torch.load(path, map_location="cpu", weights_only=True)
        weights = {str(name): tensor.float() for name, tensor in weights.items()}
        broken = [name for name, tensor in weights.items() if not torch.isfinite(tensor).all()]
    except Exception as error:  # torch raises many kinds: zip, pickle, EOF, runtime
        kind = "safetensors" if isinstance(error, SafetensorError) else "weights"
        raise UserError(f"{path}: not a whole {kind} file ({one_line(error)})") from None
    if broken:
        raise UserError(f"{path}: {broken[0]} holds NaN or infinity")
    return weights


def _checked(
    weights: Mapping[str, Tensor], expected: Mapping[str, Tensor], config: ModelConfig, folder: Path
) -> dict[str, Tensor]:
    """The weights by our names. A table of positions is allowed if it has the sinusoids."""
    path = _weights_file(folder)
    for name, tensor in weights.items():
        if POSITIONS.fullmatch(name):
            places = torch.arange(len(tensor) if tensor.dim() else 0)
            table = sinusoid_table(places, config.d_model, layout="half", dtype=torch.float32)
            if tensor.shape != table.shape or (tensor - table).abs().max() > 2e-3:
                raise UserError(f"{path}: {name} holds positions other than the sinusoids")
        elif name not in expected:
            raise UserError(f"{path}: {name} has no place in a Marian model of this project")
        elif tensor.shape != expected[name].shape:
            shapes = f"{list(tensor.shape)}, by config.json it is {list(expected[name].shape)}"
            raise UserError(f"{path}: the shape of {name} is {shapes}")
    try:
        return to_ours(weights, config)
    except KeyError as error:
        raise UserError(f"{path}: {error.args[0]} is missing") from None


def _check_ties(
    weights: Mapping[str, Tensor], expected: Mapping[str, Tensor], folder: Path
) -> None:
    """Check that weights which config.json ties are equal, and those that it leaves out are 0."""
    for name, tensor in weights.items():
        if name in expected and not torch.equal(tensor, expected[name]):
            why = "is not what config.json says: see tie_word_embeddings and "
            why += "share_encoder_decoder_embeddings"
            if name == BIAS or name.endswith(".bias"):
                why = "is not 0, and the exported model had none: train without it, or export a "
                why += "model with model.bias and model.output_bias"
            raise UserError(f"{_weights_file(folder)}: {name} {why}")
