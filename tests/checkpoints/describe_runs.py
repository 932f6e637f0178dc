"""Describe the runs that a commit writes, one of each family of position schemes, for old_run.py.

    git worktree add ../then COMMIT && cd ../then
    python PATH/TO/tests/checkpoints/describe_runs.py schemes.json.gz

The project is the one of the working directory. Each run is trained there for an epoch; its
checkpoint is described, made again from the description, and then translates, scores and goes on.
"""

import gzip
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from old_run import described, write_old_run

if __name__ == "__main__":  # where the imports of that project and its tests begin
    sys.path[1:1] = [os.getcwd(), f"{os.getcwd()}/tests"]

from tiny_models import POSITIONS
from toy_runs import log_of

from checkpoints.content import checkpoint_config
from checkpoints.run import newest_run
from configs.schema import Config
from configs.serialize import apply_overrides, from_dict, to_dict
from training.run import train
from translation.loading import load_run

FAMILIES = """
    none sinusoidal learnable rope rope_yarn xpos alibi t5 kerple_log fire sandwich shaw
    transformer_xl deberta_log cope fox_learnable randomized_t5 sinusoidal_t5
""".split()
SETTINGS = """
    model.d_model=8 model.n_heads=2 model.n_encoder_layers=1 model.n_decoder_layers=1 model.d_ff=12
    model.dropout=0.1 tokenizer.vocab_size=64 data.corpus=files data.corpus.root=corpus
    data.max_len=20 data.batch_size=48 data.cache_dir=cache optim.schedule=cosine
    optim.schedule.lr=0.01 optim.schedule.warmup_steps=3 optim.grad_clip=1.0 train.max_epochs=2
    train.device=cpu train.precision=fp32 train.log_every=1 train.log_attention=false
    evaluate.bleu_every_epochs=0 decode.beam_size=3 decode.max_len=12 decode.n_best=3
""".split()
PAIRS = [
    ("le roi prend le livre", "the king takes the book"),
    ("le chien voit le jardin", "the dog sees the garden"),
]


def described_as(content: Any, key: str = "") -> Any:
    """What `old_run.value` reads; `key` is the place of `content` in the checkpoint."""
    match content:
        case torch.Tensor():
            dtype = str(content.dtype).removeprefix("torch.")
            if content.dim() == 0:
                return {"tensor": "number", "dtype": dtype, "value": content.item()}
            assert content.is_floating_point(), key
            return {"scattered": list(content.shape), "dtype": dtype, "key": key}
        case dict():
            return {"dict": [[k, described_as(v, f"{key}.{k}")] for k, v in content.items()]}
        case list() | tuple():
            items = [described_as(v, f"{key}.{n}") for n, v in enumerate(content)]
            return {type(content).__name__: items}
    assert content is None or isinstance(content, bool | int | float | str), key
    return content


def computed(folder: Path) -> dict[str, Any]:
    """What a run translates, scores and learns next."""
    loaded = load_run(newest_run(folder).path)
    tokenizer, scores = loaded.tokenizer, []
    for src, tgt in PAIRS:
        ids = tokenizer.encode_tgt(tgt)
        given = torch.tensor([[tokenizer.bos_id, *ids[:-1]]])
        with torch.inference_mode():
            logits = loaded.model(torch.tensor([tokenizer.encode_src(src)]), given)[0]
        found = logits.double().log_softmax(-1).gather(1, torch.tensor(ids)[:, None])
        scores.append([round(score, 6) for score in found[:, 0].tolist()])
    translator, sources = loaded.translator(torch.device("cpu")), [src for src, _ in PAIRS]
    greedy = [best.text for [best] in translator.translate(sources, greedy=True)]
    beam = [[[h.text, round(h.score, 6)] for h in found] for found in translator.translate(sources)]
    train(checkpoint_config(torch.load(loaded.checkpoint)), resume=loaded.run.path)
    resumed = {
        f"{kind}/{name}": [[step, round(line[name], 6)] for step, line in lines.items()]
        for kind, names in (("train", ["loss", "grad_norm"]), ("validation", ["loss"]))
        for lines in [log_of(loaded.run, kind)]
        for name in names
    }
    return {"log_probs": scores, "greedy": greedy, "beam": beam, "resumed": resumed}


def main() -> None:
    target, runs, tokenizer = Path(sys.argv[1]).absolute(), {}, {}
    corpus = described()["corpus"]
    for name in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            Path("corpus").mkdir()
            for file, lines in corpus.items():
                Path("corpus", file).write_text("".join(f"{line}\n" for line in lines), "utf-8")
            config = to_dict(apply_overrides(Config(name="old"), SETTINGS))
            config["model"]["position"] = to_dict(POSITIONS[name])
            run = train(from_dict(config)).run
            saved = torch.load(run.checkpoints / "regular_checkpoint_1.pt", weights_only=True)
            files = {
                path.name: json.loads(path.read_text("utf-8")) for path in run.tokenizer.iterdir()
            }
            assert files == (tokenizer or files)
            tokenizer = files
            old = {"corpus": corpus, "tokenizer": files, "checkpoint": described_as(saved)}
            Path("again").mkdir()
            os.chdir("again")
            write_old_run(Path(), old)
            runs[name] = {"checkpoint": old["checkpoint"], "expected": computed(Path())}
            os.chdir("/")
    shared = {"corpus": corpus, "tokenizer": tokenizer, "runs": runs}
    target.write_bytes(gzip.compress(json.dumps(shared, ensure_ascii=False).encode(), mtime=0))


if __name__ == "__main__":
    main()
