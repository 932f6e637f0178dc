"""The README.md of a model exported to transformers: its use, data, scores and shape."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from configs.schema import Config
from configs.section import to_dict
from tokenizer.base import BaseTokenizer
from utils.languages import language_code
from utils.tables import markdown_table

_CARD = """---
{languages}library_name: transformers
pipeline_tag: translation
license: unknown
---

# {name}

Translates {src} to {tgt}, a sentence at a time. Whoever publishes the weights names their licence
above, within the terms of the data.

## Use

{needs}
```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

name = "."  # this folder, or its name on the hub
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForSeq2SeqLM.from_pretrained(name)
batch = tokenizer([{example}], return_tensors="pt", padding=True)
print(*tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True), sep="\\n")
```

## Data

{data}

## Scores

{scores}
## Model

{model}
`config.json` has the whole configuration under `fr2en`, `tokenizer/` the tokenizer of the run.
"""

READING = ("corpus", "max_len", "eval_long")  # of data: which text, and which part of it
_NO_SCORES = "`test.py` has not scored these weights on the run's own corpus.\n"


def model_card(
    config: Config,
    tokenizer: BaseTokenizer,
    progress: Mapping[str, int],
    *,
    n_parameters: int,
    results: Path,
    checksum: str,
) -> str:
    """Markdown; `progress` has the run's epoch and step, which is 0 if no training is known.

    Of the files in `results`, those count that test.py wrote for this checkpoint (SHA-256
    `checksum`), with the corpus that the card names, read as for training.
    """
    data, model = config.data, config.model
    needs = "transformers 5 or newer: older ones have one embedding for both sides.\n"
    both = ", in both directions" if data.directions == "both" else ""
    corpus = json.dumps(to_dict(data)["corpus"], ensure_ascii=False)
    codes = [each for each in map(language_code, (data.src_lang, data.tgt_lang)) if each]
    header = ["split", "search", "sentences", "sacreBLEU", "95% interval", "chrF"]
    own = {"checkpoint_sha256": checksum, **{key: to_dict(data)[key] for key in READING}}
    rows = list(_scores(results, json.loads(json.dumps(own))))
    shape = {
        "parameters": f"{n_parameters:,}",
        "layers": f"{model.n_encoder_layers} + {model.n_decoder_layers}, {model.norm}-norm",
        "model dimension, heads": f"{model.d_model}, {model.n_heads}",
        "feed-forward": f"{model.d_ff}, {model.activation}",
        "tied embeddings": model.tie_embeddings,
        "tokenizer": tokenizer.kind,
    }
    if progress["step"]:
        shape["trained for"] = "{step:,} updates ({epoch} whole epochs)".format_map(progress)
        if config.train.init_from is not None:
            shape["began with"] = config.train.init_from
        text = f"`{corpus}`{both}"
    else:  # a model from elsewhere: its config has the default
        text = "Not known: no training is on record."
        text += f" The scores are of `{corpus}`." * bool(rows)
    return _CARD.format(
        languages=f"language: {json.dumps(codes)}\n" if codes else "",
        name=config.name,
        src=data.src_lang,
        tgt=data.tgt_lang,
        needs=needs if model.norm == "pre" and model.tie_embeddings != "all" else "",
        example=json.dumps(_example(results, data.src_lang), ensure_ascii=False),
        data=text,
        scores=markdown_table(header, rows) if rows else _NO_SCORES,
        model=markdown_table(["", config.name], list(shape.items())),
    )


def _example(results: Path, language: str) -> str:
    """A sentence of the source language: French, or the first that test.py has translated."""
    if language == "fr":
        return "Le chat dort."
    with contextlib.suppress(OSError, StopIteration, UnicodeDecodeError):
        return next(results.glob("*.src.txt")).read_text("utf-8").partition("\n")[0]
    return "..."


def _scores(results: Path, own: Mapping[str, Any]) -> Iterator[list[str]]:
    """A row for each of test.py's files with the given checkpoint and data settings."""
    for path in sorted(results.glob("*_scores.json")):
        with contextlib.suppress(OSError, RecursionError, ValueError, LookupError, TypeError):
            record = json.loads(path.read_text("utf-8"))
            known = {**record, **record["config"]["data"]}
            alone = record.keys().isdisjoint({"partners", "neighbours"})
            if alone and own.items() <= known.items():
                yield [path.name.removesuffix("_scores.json"), *_row(record)]


def _row(record: Mapping[str, Any]) -> list[str]:
    scores, search = record["scores"], record["search"]
    low, high = scores["interval"]
    how = f"{search['kind']} {search.get('beam_size', '')}".strip()
    found = [f"{scores['sacrebleu']:.2f}", f"{low:.2f} to {high:.2f}", f"{scores['chrf']:.2f}"]
    return [how, f"{scores['n']:,}", *found]
