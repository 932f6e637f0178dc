# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A translator in Python
#
# Train two small models that differ only in their positional encoding, translate with them, ask
# how probable they find a translation, look at their attention, and compare them on sentences
# longer than any they have seen. Everything is in the repository: nothing is downloaded.
#
# The file is plain text: `jupytext --to ipynb docs/notebook.py` makes a notebook of it (first `pip
# install -e .`, so that `fr2en` is found), and `python docs/notebook.py` runs it as it is.

# %%
import logging
import os
import sys
from pathlib import Path

import numpy as np

# In a notebook this line shows figures; elsewhere it is a comment:
# %matplotlib inline
sys.path.insert(0, str(Path.cwd()))  # if the package is not installed: the root of the checkout
import fr2en
from fr2en import Translator

os.chdir(Path(fr2en.__file__).parents[1])  # the configs' paths start here
logging.basicConfig(level=logging.INFO, format="%(message)s")  # the progress of a training

# %% [markdown]
# ## Two models
#
# One config, two encodings: sinusoids added to the embeddings, and RoPE, which rotates queries and
# keys. Both are trained on sentences of at most eight words; the test split has only longer ones.
# A model takes about two minutes of one CPU core, and is kept for the next time.

# %% tags=["parameters"]
RUNS = "runs/notebook"
SETTINGS = ["data.corpus.train_max_words=8", "data.corpus.n_train=10000", "train.max_epochs=8"]
N_SENTENCES = 100

# %%
from contextlib import suppress

from checkpoints.run import FinishedError
from configs.load import load_config
from training.run import train
from training.start import run_to_resume


def trained(position: str) -> Translator:
    settings = [*SETTINGS, f"train.runs_dir={RUNS}/{position}"]
    config = load_config("configs/demo.py", settings, position)
    run = run_to_resume(config)  # resumes an interrupted training
    with suppress(FinishedError):
        result = train(config, resume=run)
        assert result.signal is None, "stopped: run the cell again to go on"
        run = result.run.path
    return Translator.load(run)


sinusoidal, rope = trained("sinusoidal"), trained("rope")

# %% [markdown]
# ## Translating
#
# A translation is its best hypothesis, and also has all others. `score` is the log-probability over
# the length penalty, by which a beam ranks them.

# %%
SENTENCE = "Il y a un livre sur la table."
translation = rope.translate(SENTENCE, beam_size=5, n_best=3)
print(translation.text)
for hypothesis in translation.hypotheses:
    print(f"{hypothesis.score:8.3f} {hypothesis.log_prob:8.3f}  {hypothesis.text}")

# %% [markdown]
# Every token has its own log-probability: where was the model in doubt?

# %%
for token, log_prob in zip(translation.tokens, translation.token_log_probs):
    print(f"{token:>12} {np.exp(log_prob):6.1%}")

# %% [markdown]
# ## Scoring
#
# The same for translations that the model did not make. A list gives a list.

# %%
CANDIDATES = [
    "There is a book on the table.",
    "There's a book on the table.",
    "There is a table on the book.",
]
for text, scores in zip(CANDIDATES, rope.score([SENTENCE] * len(CANDIDATES), CANDIDATES)):
    print(f"{scores.log_prob:8.2f}  {text}")

# %% [markdown]
# ## Attention
#
# Tokens, and arrays [layer, head, query, key]. Row t of the cross-attention is where the model
# looked when it predicted target token t.

# %%
attention = rope.attention(SENTENCE, CANDIDATES[0])
print(attention.cross.shape, "layers, heads, target tokens, source tokens")
for token, weights in zip(attention.target, attention.cross[-1].mean(axis=0)):
    print(f"{token:>12} looks at {attention.source[int(weights.argmax())]}")

# %%
from pictures.attention import attention_grid, attention_maps

figure = attention_grid(attention_maps(attention, layers=[-1])["cross"])
figure

# %% [markdown]
# ## Two encodings beside each other
#
# The log-probability of a reference's token, on average, and the BLEU of greedy translations: on
# short sentences as in training, and on longer ones.

# %%
from data.corpora.phrasebook import PhrasebookCorpus
from translation.metrics import sacrebleu_score

corpus = PhrasebookCorpus(load_config("configs/demo.py", SETTINGS).data.corpus)
for split in ("validation", "test"):
    text = corpus.load(split)
    src, tgt = list(text.src[:N_SENTENCES]), list(text.tgt[:N_SENTENCES])
    words = np.mean([len(line.split()) for line in src])
    print(f"{split}: {words:.1f} words a sentence")
    for name, model in {"sinusoidal": sinusoidal, "rope": rope}.items():
        per_token = np.concatenate([scores.log_probs for scores in model.score(src, tgt)]).mean()
        hypotheses = [found.text for found in model.translate(src, search="greedy")]
        print(f"{name:>12}: {per_token:6.3f} a token, BLEU {sacrebleu_score(hypotheses, tgt):5.1f}")

# %% [markdown]
# [positional_encodings.md](positional_encodings.md) explains the encodings, and why they differ
# beyond the lengths of training. One training of each says little:
# `experiments/length_extrapolation.py` does this comparison over all schemes and several seeds.
