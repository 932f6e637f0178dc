"""Search by CTranslate2 with an export of the run, made once; it finds what our search finds."""

import hashlib
import json
import logging
import math
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from checkpoints import ctranslate2
from checkpoints.run import BEST, REGULAR, STEP, Run
from configs.schema import ModelConfig
from models import positional_encodings
from models.decoding.hypothesis import Hypothesis, Limits, length_penalty, never_generated
from models.transformer import TranslationTransformer
from tokenizer.base import BaseTokenizer
from utils.errors import UserError, one_line
from utils.files import crc32, made_once

logger = logging.getLogger(__name__)

CHECKSUMS = "crc32.json"  # of the other files of an export

# A length penalty that keeps CTranslate2 from ending with the first hypothesis that nothing can
# overtake, as it does without one. It leaves every score as it is: length ** 1e-30 is 1.
NO_EARLY_EXIT = 1e-30

# Steps of a first search beyond the tokens of the source.
MORE_STEPS = 4

# The most that ids which no translation holds (padding, start) may take of a log-probability.
UNSURE = 0.02


def export_once(
    model: TranslationTransformer,
    config: ModelConfig,
    tokenizer: BaseTokenizer,
    *,
    run: Run,
    checkpoint: Path,
    checksum: str,
) -> Path:
    """The folder of the checkpoint's CTranslate2 model, in float32: RUN/ctranslate2/STEM-HASH.

    Unless there is a whole one of this checkpoint by this converter, it is made, and earlier ones
    of it, or of the run's checkpoints that are gone, are removed. Two processes at once make one.
    UserError: see `convert`; the package is not installed; or the run's folder cannot be written.
    """
    ctranslate2.require_ctranslate2()
    schemes = sorted(Path(positional_encodings.__file__).parent.glob("*.py"))
    converter = b"".join(path.read_bytes() for path in [Path(ctranslate2.__file__), *schemes])
    key = hashlib.sha256(checksum.encode() + converter).hexdigest()[:16]
    folder = run.path / "ctranslate2" / f"{checkpoint.stem}-{key}"

    def make(aside: Path) -> None:
        ctranslate2.convert(model, config, tokenizer, aside, rule_out=False)
        (aside / CHECKSUMS).write_text(json.dumps(_checksums(aside)), "utf-8")

    if _is_whole(folder):
        return folder
    if (folder / CHECKSUMS).exists():
        logger.warning("%s is damaged: making it again", folder)
    there = "|".join(re.escape(path.stem) for path in run.files(BEST, REGULAR, STEP))
    gone = rf"(?!(?:{there})-[0-9a-f]{{16}}$)(?:best|regular|step)_.*"
    stale = rf"(?:{re.escape(checkpoint.stem)}|{gone})-[0-9a-f]{{16}}"
    return made_once(folder, make, is_whole=_is_whole, stale=stale)


def _is_whole(folder: Path) -> bool:
    try:
        return json.loads((folder / CHECKSUMS).read_text("utf-8")) == _checksums(folder)
    except (OSError, ValueError):
        return False


def _checksums(folder: Path) -> dict[str, int]:
    return {path.name: crc32(path) for path in folder.iterdir() if path.name != CHECKSUMS}


class CTranslate2:
    """An exported model that searches in `compute_type` on a device, for several threads at once.

    Raises UserError where the package cannot use it, or not in this type on the device.
    """

    def __init__(
        self,
        folder: Path,
        tokenizer: BaseTokenizer,
        device: torch.device,
        *,
        compute_type: str,
        inter_threads: int,
        intra_threads: int,
    ) -> None:
        library = ctranslate2.require_ctranslate2()
        self.name = f"ctranslate2 {library.__version__} in {compute_type}"
        self.compute_type = compute_type
        self._pieces = tokenizer.src_pieces(range(tokenizer.src_vocab_size))
        try:
            index = device.index or 0
            supported = library.get_supported_compute_types(device.type, index)
            if compute_type not in supported:
                raise UserError(
                    f"--compute_type {compute_type}: CTranslate2 computes in "
                    f"{', '.join(sorted(supported))} on this {device.type}"
                )
            threads = {"inter_threads": inter_threads, "intra_threads": intra_threads}
            self._translator = library.Translator(
                os.fsencode(folder),
                device.type,
                device_index=index,
                compute_type=compute_type,
                **threads,
            )
            # The first search loads libraries such as cuBLAS, which may be missing.
            empty = [[self._pieces[tokenizer.eos_id]]]
            self._translator.translate_batch(empty, beam_size=1, max_decoding_length=1)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"CTranslate2 cannot use {folder}: {one_line(error)}") from error
        pieces = tokenizer.tgt_pieces(range(tokenizer.tgt_vocab_size))
        self._ids = {piece: i for i, piece in enumerate(pieces)}
        special = {name: getattr(tokenizer, name) for name in ("pad_id", "bos_id", "eos_id")}
        self._never = [[pieces[i]] for i in never_generated(**special)]
        self._eos = pieces[tokenizer.eos_id]

    def search(
        self,
        sources: Sequence[Sequence[int]],
        limits: Limits,
        max_lengths: Sequence[int],
        *,
        beam_size: int,
        n_best: int,
    ) -> list[list[Hypothesis]]:
        """Ids of B sources -> what `beam_search` finds, or `greedy_search` where beam_size is 1.

        max_lengths: the most tokens (EOS included) of each source's translation. A sentence gets
        nothing where the result is not sure. CTranslate2 ranks without the probabilities of ids
        that no translation holds; the result is unsure where these take more than UNSURE, as in a
        model hardly trained. Scores count them.

        CTranslate2 extends the same beams, but ends with the first hypothesis that leads, or with a
        number of finished ones. So it is made to go on for a fixed number of steps, the last of
        which shows the live hypotheses. If one of these can still be among the n best, the sentence
        is searched again for twice as many steps, up to its limit.
        """
        lengths = torch.arange(max(max_lengths) + 1, dtype=torch.float64)
        penalties = length_penalty(lengths, limits.alpha).tolist()
        texts = [[self._pieces[i] for i in source] for source in sources]
        found: list[list[tuple[list[str], float]]] = [[] for _ in texts]
        rows, steps = list(range(len(texts))), max(map(len, texts)) + MORE_STEPS
        alone = beam_size > 1 and n_best == 1 and limits.alpha == 0
        while rows:
            alike: dict[int, list[int]] = defaultdict(list)
            for row in rows:
                alike[min(steps, max_lengths[row])].append(row)
            rows, steps = [], 2 * steps
            for n_steps, group in alike.items():
                batch = [texts[row] for row in group]
                results = self._translate(batch, n_steps, beam_size, alone=alone)
                for row, result in zip(group, results):
                    longest = max_lengths[row]
                    found[row], ends = self._ends(result, n_best, penalties, longest)
                    if not ends and n_steps < longest:
                        rows.append(row)
                    elif not ends and alone:  # cut off; one that ended ranks before it
                        [result] = self._translate([texts[row]], n_steps, beam_size, alone=False)
                        found[row], _ = self._ends(result, n_best, penalties, longest)
        unsure = UNSURE if beam_size > 1 else math.inf
        return self._scored(texts, found, penalties, unsure)

    def _translate(
        self, texts: list[list[str]], n_steps: int, beam_size: int, *, alone: bool
    ) -> Any:
        """All that CTranslate2 finds in n_steps; with `alone` the most probable hypothesis."""
        options: dict[str, Any] = {"length_penalty": 0}
        if beam_size > 1 and not alone:
            options = {"length_penalty": NO_EARLY_EXIT, "patience": n_steps + 1}
            options["num_hypotheses"] = (n_steps + 1) * beam_size
        return self._translator.translate_batch(
            texts,
            beam_size=beam_size,
            max_decoding_length=n_steps,
            min_decoding_length=0,
            max_input_length=0,
            suppress_sequences=self._never,
            return_scores=True,
            return_end_token=True,
            **options,
        )

    def _ends(
        self, result: Any, n_best: int, penalties: Sequence[float], longest: int
    ) -> tuple[list[tuple[list[str], float]], bool]:
        """The n best with their log-probabilities, and whether they will stay the n best."""
        ranked, ahead = [], -math.inf  # the best live one
        for pieces, log_prob in zip(result.hypotheses, result.scores):
            ended = pieces[-1] == self._eos
            ranked.append((ended, log_prob / penalties[len(pieces)], pieces, log_prob))
            ahead = ahead if ended else max(ahead, log_prob)
        if len(ranked) > 1 and ahead == -math.inf:
            ahead = 0.0  # all of the last step have ended, which hides any live ones behind them
        ranked.sort(key=lambda each: each[:2], reverse=True)
        ended, score, *_ = ranked[min(n_best, len(ranked)) - 1]
        best = [(pieces, log_prob) for *_, pieces, log_prob in ranked[:n_best]]
        return best, ended and score >= ahead / penalties[longest]

    def _scored(
        self,
        texts: Sequence[list[str]],
        found: Sequence[Sequence[tuple[list[str], float]]],
        penalties: Sequence[float],
        unsure: float,
    ) -> list[list[Hypothesis]]:
        """Hypotheses with the model's log-probabilities, best first; none if the search differs."""
        pairs = [(row, *each) for row, of_row in enumerate(found) for each in of_row]
        results = self._translator.score_batch(
            [texts[row] for row, *_ in pairs],
            [[piece for piece in pieces if piece != self._eos] for _, pieces, _ in pairs],
            max_batch_size=len(texts),
            max_input_length=0,
        )
        scored: list[list[Hypothesis]] = [[] for _ in texts]
        apart = [0.0] * len(texts)
        for (row, pieces, searched), result in zip(pairs, results):
            log_prob, ended = math.fsum(result.log_probs[: len(pieces)]), pieces[-1] == self._eos
            apart[row] = max(apart[row], abs(log_prob - searched))
            ids = tuple(self._ids[piece] for piece in pieces[: len(pieces) - ended])
            scored[row].append(Hypothesis(ids, log_prob, log_prob / penalties[len(pieces)], ended))
        return [
            sorted(each, key=lambda h: (not h.finished, -h.score)) if gap <= unsure else []
            for each, gap in zip(scored, apart)
        ]
