"""Exports a trained model as a folder of the transformers library, whose classes run it.

A post-norm model becomes Marian's, a pre-norm one Pegasus': the same Transformer, with sinusoids of
the layout "half". Both start decoding from the padding token. In the export that is our start
token, which no sentence holds, so that no id and no embedding changes.
"""

import json
import operator
import re
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, normalizers
from torch import Tensor

from checkpoints.content import CONFIG, TOKENIZER, save_tensors
from checkpoints.marian import GENERATION, OURS
from checkpoints.run import WEIGHTS
from checkpoints.transformers_weights import EMBEDDINGS, SHARED, to_theirs
from checkpoints.zero_start import start_from_zeros
from configs.schema import Config, DecodeConfig, ModelConfig, Sampling
from configs.serialize import to_dict
from data.corpora.text import INVISIBLE
from models.decoding.hypothesis import never_generated
from models.positional_encodings.sinusoidal import sinusoid_table
from models.transformer import TranslationTransformer
from tokenizer.base import BaseTokenizer
from tokenizer.separate import SeparateTokenizer
from tokenizer.subword import CONFIG_FILE, FILE, SubwordTokenizer
from utils.errors import UserError
from utils.files import write_bytes, write_text

# The length in tokens of the table of positions, where nothing asks for more.
MAX_POSITIONS = 1024

# The settings that a model may have to be exported.
REPRESENTED: dict[str, tuple[Any, ...]] = {
    "backend": ("scratch",),
    "norm": ("pre", "post"),
    "layer_norm": ("standard",),
    "gated": (False,),
    "position.kind": ("sinusoidal",),
    "position.layout": ("interleaved", "half"),
    "position.base": (10000.0,),
}

# Embeddings and output, and which of these names are tied to a tensor of another name.
_TIED = {"none": (), "target": ("lm_head.weight",), "all": (*EMBEDDINGS, "lm_head.weight")}

# The white space of str.split().
_SPACE = "[\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"


def write_transformers(
    model: TranslationTransformer,
    config: Config,
    tokenizer: BaseTokenizer,
    folder: Path,
    *,
    zero_start: bool = False,
) -> None:
    """Write weights, configuration and tokenizer into `folder`, our own tokenizer/ beside theirs.

    zero_start: write a post-norm model as CTranslate2's converter takes it, see
    checkpoints/zero_start.py; such a folder cannot be read as a run.

    Raises UserError, before it writes, where transformers has no equal of the model.
    """
    _require_equal(config.model, tokenizer)
    longest = max(MAX_POSITIONS, config.data.max_len, config.decode.max_len)
    n_positions = getattr(config.model.position, "max_positions", None) or longest
    weights = _weights(model, config.model, n_positions)
    ids = {
        "bos_token_id": tokenizer.bos_id,
        "pad_token_id": tokenizer.bos_id,
        "decoder_start_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "forced_eos_token_id": None,
    }
    about = {
        **their_shape(config.model, tokenizer),
        "max_position_embeddings": n_positions,
        **ids,
        "dtype": str(model.output.weight.dtype).removeprefix("torch."),
        OURS: to_dict(config),
    }
    never = never_generated(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    generation = {**ids, "suppress_tokens": list(never), **_search(config.decode)}
    files = _tokenizer_files(tokenizer, n_positions)
    if zero_start and config.model.norm == "post":
        start_from_zeros(weights, about, generation, files)
    save_tensors(weights, folder / WEIGHTS)
    for name, values in ((CONFIG, about), (GENERATION, generation)):
        write_text(folder / name, json.dumps(values, indent=2, ensure_ascii=False) + "\n")
    for name, content in files.items():
        write_bytes(folder / name, content)
    tokenizer.save(folder / TOKENIZER)


def _require_equal(config: ModelConfig, tokenizer: BaseTokenizer) -> None:
    """Raises UserError naming what the library lacks."""
    for field, values in REPRESENTED.items():
        value = operator.attrgetter(field)(config)
        if value not in values:
            raise UserError(
                f"model.{field} = {value!r} cannot be exported to transformers: its Marian and "
                f"Pegasus have {' or '.join(map(repr, values))}; --format safetensors takes "
                "every model"
            )
    if isinstance(tokenizer, SeparateTokenizer):
        raise UserError(
            "separate vocabularies (tokenizer.joint = False) cannot be exported to transformers: "
            "its AutoTokenizer reads one; --format safetensors takes every model"
        )
    if config.norm == "pre" and not tokenizer.shared_vocab:
        raise UserError(
            "a pre-norm model with two vocabularies cannot be exported to transformers: its "
            "Pegasus has one; --format safetensors takes every model"
        )


def their_shape(config: ModelConfig, tokenizer: BaseTokenizer) -> dict[str, Any]:
    """Their config.json without ids and lengths."""
    tied = config.tie_embeddings
    shape = {
        "architectures": ["PegasusForConditionalGeneration"],
        "model_type": "pegasus",
        "vocab_size": tokenizer.src_vocab_size,
        "d_model": config.d_model,
        "num_hidden_layers": config.n_encoder_layers,
        **{f"{stack}_attention_heads": config.n_heads for stack in ("encoder", "decoder")},
        **{f"{stack}_ffn_dim": config.d_ff for stack in ("encoder", "decoder")},
        "encoder_layers": config.n_encoder_layers,
        "decoder_layers": config.n_decoder_layers,
        "activation_function": config.activation,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "scale_embedding": True,
        "tie_word_embeddings": tied == "all",
        "is_encoder_decoder": True,
        # For CTranslate2's converter; Pegasus' own class does not read them.
        "normalize_before": config.norm == "pre",
        "normalize_embedding": False,
    }
    if config.norm == "post":
        shape |= {
            "architectures": ["MarianMTModel"],
            "model_type": "marian",
            "decoder_vocab_size": tokenizer.tgt_vocab_size,
            "share_encoder_decoder_embeddings": tied == "all",
            "tie_word_embeddings": tied != "none",
        }
    return shape


def _weights(
    model: TranslationTransformer, config: ModelConfig, n_positions: int
) -> dict[str, Tensor]:
    """Their state_dict, with tied tensors once, and with tables of positions."""
    weights = to_theirs(model.state_dict(), config)
    table = sinusoid_table(
        torch.arange(n_positions), config.d_model, layout="half", dtype=model.output.weight.dtype
    )
    for stack in ("encoder", "decoder"):
        weights[f"model.{stack}.embed_positions.weight"] = table.clone()
    if config.norm == "pre":  # Pegasus always has this one, and does not use it untied
        weights.setdefault(SHARED, weights[EMBEDDINGS[0]].clone())
    for name in _TIED[config.tie_embeddings]:
        # Pegasus ties all or nothing.
        if config.norm == "post" or config.tie_embeddings == "all":
            del weights[name]
    return {name: weight.cpu().contiguous() for name, weight in weights.items()}


def _search(decode: DecodeConfig) -> dict[str, Any]:
    """The search in their terms; max_length counts the start token.

    They divide by length^alpha, we by ((5 + length) / 6)^alpha: the same for alpha = 0.
    """
    length = {"max_length": decode.max_len + 1}
    if decode.no_repeat_ngram_size:
        length["no_repeat_ngram_size"] = decode.no_repeat_ngram_size
    if isinstance(decode.search, Sampling):
        top_k, top_p = decode.search.top_k or 0, decode.search.top_p or 1.0
        drawn = {"do_sample": True, "temperature": decode.search.temperature}
        return {**length, **drawn, "top_k": top_k, "top_p": top_p}
    beam = {"length_penalty": decode.length_penalty, "early_stopping": False}
    return {**length, "num_beams": decode.beam_size, **(beam if decode.beam_size > 1 else {})}


# ---------------------------------------------------------------------------------------- tokenizer


def _tokenizer_files(tokenizer: BaseTokenizer, n_positions: int) -> dict[str, bytes]:
    """What AutoTokenizer reads: Marian's files as they are; ours, with white space normalised."""
    files = dict(tokenizer.files())
    about = json.loads(files.get(CONFIG_FILE, b"{}"))
    if isinstance(tokenizer, SubwordTokenizer):
        backend = Tokenizer.from_str(files[FILE].decode())
        in_onig = re.sub(r"\\[ux](\w+)", r"\\x{\1}", INVISIBLE.pattern)
        level = [normalizers.Replace(Regex(in_onig), ""), normalizers.Replace(Regex(_SPACE), " ")]
        backend.normalizer = normalizers.Sequence([*level, normalizers.Strip(), backend.normalizer])
        outer = decoders.Replace(Regex(rf"\A{_SPACE}|{_SPACE}\z"), "")
        backend.decoder = decoders.Sequence([backend.decoder, decoders.Fuse(), outer])
        files[FILE] = backend.to_str(pretty=True).encode()
        [start] = tokenizer.src_pieces([tokenizer.bos_id])
        about["pad_token"] = start
        about["model_input_names"] = ["input_ids", "attention_mask"]
    else:
        about["tokenizer_class"] = "MarianTokenizer"  # Pegasus would look for its own
    about["model_max_length"] = n_positions
    files[CONFIG_FILE] = (json.dumps(about, indent=2, ensure_ascii=False) + "\n").encode()
    return files
