"""Our models under transformers' names say what ours say: two layouts, two norms, every tie."""

from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import (
    D_FF,
    D_MODEL,
    EOS,
    N_HEADS,
    PAD,
    VOCAB,
    sources,
    targets,
    tiny_config,
    tiny_model,
    vocabulary,
)
from torch import Tensor
from transformers import MarianConfig, MarianMTModel, PegasusConfig, PegasusForConditionalGeneration

from checkpoints.transformers_weights import to_ours, to_theirs
from configs.schema import Sinusoidal

POST = {"norm": "post", "position": Sinusoidal(layout="half")}
MODELS: list[dict[str, Any]] = [
    {**POST, "tie_embeddings": "all", "output_bias": True, "activation": "silu"},
    {**POST, "tie_embeddings": "target", "activation": "gelu"},
    {**POST, "n_encoder_layers": 1, "n_decoder_layers": 3, "output_bias": True},
    {"norm": "post", "position": Sinusoidal(), "tie_embeddings": "all", "output_bias": True},
    {"norm": "post", "position": Sinusoidal(), "bias": False, "n_encoder_layers": 3},
    {"norm": "pre", "position": Sinusoidal(layout="half"), "tie_embeddings": "target"},
    {"norm": "pre", "position": Sinusoidal(), "output_bias": True},
    {"norm": "pre", "position": Sinusoidal(), "tie_embeddings": "all"},
]


def two_vocabularies() -> Any:
    return vocabulary(src_vocab_size=VOCAB + 3, shared_vocab=False)


def theirs_of(ours: Any, config: Any, weights: dict[str, Tensor]) -> Any:
    """The model of transformers with these weights, in float64 with exact sinusoids."""
    tie = config.tie_embeddings
    sizes = {
        "d_model": D_MODEL,
        "vocab_size": ours.src_embedding.num_embeddings,
        "decoder_vocab_size": ours.output.out_features,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "decoder_start_token_id": PAD,
        "encoder_layers": config.n_encoder_layers,
        "decoder_layers": config.n_decoder_layers,
        "activation_function": config.activation,
        "scale_embedding": True,
        "max_position_embeddings": 32,
        "share_encoder_decoder_embeddings": tie == "all",
        # Pegasus knows all or none.
        "tie_word_embeddings": tie == "all" or (tie == "target" and config.norm == "post"),
    }
    for stack in ("encoder", "decoder"):
        sizes |= {f"{stack}_attention_heads": N_HEADS, f"{stack}_ffn_dim": D_FF}
    if config.norm == "post":
        model: Any = MarianMTModel(MarianConfig(**sizes))
    else:
        model = PegasusForConditionalGeneration(PegasusConfig(**sizes))
    model = model.double().eval()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert {name.split(".")[-2] for name in missing} <= {"embed_positions"}
    assert unexpected == []
    angles = np.arange(32)[:, None] / 10000 ** (np.arange(0, D_MODEL, 2) / D_MODEL)
    table = torch.from_numpy(np.concatenate((np.sin(angles), np.cos(angles)), axis=1))
    for stack in (model.model.encoder, model.model.decoder):
        stack.embed_positions.weight.data = table
    return model


@pytest.mark.parametrize("changes", MODELS, ids=str)
def test_logits_are_equal_under_either_names(changes: dict[str, Any]) -> None:
    config = tiny_config(**changes)
    separate = config.tie_embeddings != "all" and config.norm == "post"
    ours = tiny_model(**changes, vocab=two_vocabularies() if separate else None)
    weights = to_theirs(ours.state_dict(), config)
    if config.norm == "pre" and config.tie_embeddings != "all":  # Pegasus has `shared` in any case
        weights["model.shared.weight"] = weights["model.encoder.embed_tokens.weight"]
    src, tgt_in = sources(6, 3, 9), targets(3, 7)
    theirs = theirs_of(ours, config, weights)
    with torch.no_grad():
        found = theirs(src, attention_mask=src != PAD, decoder_input_ids=tgt_in).logits
        torch.testing.assert_close(ours(src, tgt_in), found, atol=1e-10, rtol=0)
    back = to_ours(weights, config)
    assert back.keys() == ours.state_dict().keys()
    for name, tensor in ours.state_dict().items():
        assert torch.equal(back[name], tensor), name


def test_tied_weights_may_be_given_once_and_the_bias_not_at_all() -> None:
    changes = {**POST, "tie_embeddings": "all", "output_bias": True}
    config, ours = tiny_config(**changes), tiny_model(**changes)
    weights = to_theirs(ours.state_dict(), config)
    names = ("lm_head.weight", "final_logits_bias", "model.decoder.embed_tokens.weight")
    for name in (*names, "model.encoder.embed_tokens.weight"):
        del weights[name]
    back = to_ours(weights, config)
    assert torch.equal(back["output.weight"], ours.output.weight)
    assert torch.equal(back["output.bias"], torch.zeros(VOCAB, dtype=torch.float64))
    del weights["model.encoder.layers.1.fc2.bias"]
    with pytest.raises(KeyError, match=r"layers\.1\.fc2\.bias"):
        to_ours(weights, config)
