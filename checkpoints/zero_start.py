"""A Marian folder that starts decoding from zeros, as CTranslate2's converter expects.

The converter supports only Marian's own models: decoding starts from an embedding of zeros, and the
last piece is padding, which it leaves out. Here both become true of any model. The scaled embedding
of the start token is added to the decoder's first row of positions, where no other token stands.
"""

import json
import math
from typing import Any

import torch
from torch import Tensor

from checkpoints.ctranslate2 import NEVER
from checkpoints.marian import ZERO_START
from checkpoints.transformers_weights import BIAS, EMBEDDINGS, SHARED
from tokenizer.marian import TARGET_VOCAB
from tokenizer.subword import CONFIG_FILE, FILE
from utils.errors import UserError

PADDING, UNUSED = "<pad>", "<unused>"  # the added piece, and the new name of the run's own


def start_from_zeros(
    weights: dict[str, Tensor],
    about: dict[str, Any],
    generation: dict[str, Any],
    files: dict[str, bytes],
) -> None:
    """Change what is about to be written: their weights, config.json, generation_config.json and
    the tokenizer's files.

    Unless the start token is the last piece already, a last piece is added for it. Raises UserError
    for a Marian vocabulary that the converter does not know.
    """
    about[ZERO_START] = True
    n_pieces, start = about["decoder_vocab_size"], about["decoder_start_token_id"]
    if TARGET_VOCAB in files or (FILE not in files and start != n_pieces - 1):
        raise UserError(
            "--zero_start: CTranslate2's converter needs one vocabulary that ends in padding; "
            "use --format ctranslate2"
        )
    names = [SHARED, *EMBEDDINGS]
    table = next(weights[name] for name in (SHARED, names[2]) if name in weights)
    added = table[start] * math.sqrt(about["d_model"])
    weights["model.decoder.embed_positions.weight"][0] += added
    if start != n_pieces - 1:
        for name in {*names, "lm_head.weight"} & weights.keys():
            weights[name] = torch.cat((weights[name], weights[name][:1]))
        weights[BIAS] = torch.cat((weights[BIAS], weights[BIAS][:, :1]), dim=1)
        about["vocab_size"] = about["decoder_vocab_size"] = n_pieces + 1
        generation["suppress_tokens"].append(n_pieces)
        for ids in (about, generation):
            ids["pad_token_id"] = ids["decoder_start_token_id"] = n_pieces
        _add_padding(files, n_pieces)
    for name in {*names} & weights.keys():
        weights[name][-1] = 0
    weights[BIAS][0, -1] = NEVER


def _add_padding(files: dict[str, bytes], place: int) -> None:
    """A last piece for padding in the files of a vocabulary trained here."""
    backend = json.loads(files[FILE])
    [own] = [token for token in backend["added_tokens"] if token["content"] == PADDING]
    backend["added_tokens"].append({**own, "id": place})
    own["content"] = UNUSED
    vocab = backend["model"]["vocab"]
    if isinstance(vocab, dict):  # BPE
        vocab[UNUSED] = vocab.pop(PADDING)
    else:
        vocab[own["id"]][0] = UNUSED
    files[FILE] = json.dumps(backend, indent=2, ensure_ascii=False).encode()
    about = json.loads(files[CONFIG_FILE]) | {"pad_token": PADDING}
    files[CONFIG_FILE] = json.dumps(about, indent=2, ensure_ascii=False).encode()
