"""Tokenizer files as Marian models have them, made from a few sentences."""

import json
import os
from pathlib import Path

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
