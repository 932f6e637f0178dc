"""Marian models as transformers saves them: small random ones, and tokenizers of few sentences."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

SUBJECTS = "Le garçon|La fenêtre|L'homme âgé|Ma sœur|Notre cœur|Un élève|L'œuvre"
FRENCH = [
    f"{who} {verb} {what}{end}"
    for who in SUBJECTS.split("|")
    for verb in ("regarde", "n'aime pas", "préfère", "a trouvé")
    for what in ("la maison", "l'arbre", "«\u00a0Noël\u00a0»", "10 pommes", "ça", "où il est")
    for end in (".", ", non ?", " !", "…")
]
ENGLISH = [
    f"{who} {verb} {what}{end}"
    for who in ("The boy", "The window", "The old man", "My sister", "Our heart", "A pupil", "It")
    for verb in ("watches", "doesn't like", "prefers", "has found")
    for what in ("the house", "the tree", "“Christmas”", "10 apples", "that", "where he is")
    for end in (".", "!", "?", "…")
]


def write_marian_files(folder: Path) -> Path:
    """A small tokenizer in Marian's format: two models, one vocabulary, eos 0, unk 1, pad last."""
    import sentencepiece

    pieces: set[str] = set()
    for side, texts in (("source", FRENCH), ("target", ENGLISH)):
        prefix = str(folder / side)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_prefix=prefix,
            vocab_size=100,
            hard_vocab_limit=False,
            minloglevel=2,
            num_threads=1,
        )
        os.replace(f"{prefix}.model", folder / f"{side}.spm")
        os.remove(f"{prefix}.vocab")
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        pieces |= {model.id_to_piece(i) for i in range(model.get_piece_size())}
    order = ["</s>", "<unk>", *sorted(pieces - {"<s>", "</s>", "<unk>"}), "<pad>"]
    (folder / "vocab.json").write_text(
        json.dumps({piece: i for i, piece in enumerate(order)}), encoding="utf-8"
    )
    config = {"source_lang": "fr", "target_lang": "en", "tokenizer_class": "MarianTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def with_two_vocabularies(files: Path, folder: Path) -> Path:
    """A copy of a tokenizer whose target vocabulary has an order of its own, as for padding."""
    shutil.copytree(files, folder, dirs_exist_ok=True)
    pieces = list(json.loads((files / "vocab.json").read_text("utf-8")))
    order = ["</s>", "<unk>", *reversed(pieces[2:-1]), "<pad>"]
    target = json.dumps({piece: i for i, piece in enumerate(order)})
    (folder / "target_vocab.json").write_text(target, encoding="utf-8")
    config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    changed = json.dumps(config | {"separate_vocabs": True})
    (folder / "tokenizer_config.json").write_text(changed, encoding="utf-8")
    return folder


def write_marian_model(files: Path, folder: Path, **changes: Any) -> Path:
    """A random model for a tokenizer's files, as save_pretrained writes it.

    Its weights are large enough for its choices not to be ties, and its sentences end.
    """
    import torch
    from transformers import MarianConfig, MarianMTModel

    shutil.copytree(files, folder, dirs_exist_ok=True)
    vocab = json.loads((files / "vocab.json").read_text("utf-8"))
    size, pad, eos = len(vocab), vocab["<pad>"], vocab["</s>"]
    config: dict[str, Any] = {
        "vocab_size": size,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "activation_function": "swish",
        "scale_embedding": True,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
        "eos_token_id": eos,
        "forced_eos_token_id": eos,
        "max_position_embeddings": 64,
        "init_std": 0.3,
    }
    for stack in ("encoder", "decoder"):
        config |= {f"{stack}_attention_heads": 4, f"{stack}_ffn_dim": 48}
    torch.manual_seed(0)
    model = MarianMTModel(MarianConfig(**(config | changes)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
        model.final_logits_bias.normal_()
        model.final_logits_bias[0, eos] += 4.0
    model.generation_config.update(num_beams=4, max_length=40, bad_words_ids=[[pad]])
    model.save_pretrained(folder)
    return folder


def french_sentences(n: int) -> list[str]:
    """Words of FRENCH in any order, 1 to 12 a sentence."""
    draw, words = random.Random(0), " ".join(FRENCH).split()
    return [" ".join(draw.choices(words, k=draw.randint(1, 12))) for _ in range(n)]
