"""Translation in three lines of Python: French to English, or the pair a model was trained on.

>>> from fr2en import Translator
>>> translator = Translator.load("runs/my_run")
>>> translator.translate("Le chat dort.").text
"""

from translation.alignment import Alignment, HeadChoice
from translation.answers import Attention, Hypothesis, TokenScores, Translation
from translation.sentences import lower_capitals, split_sentences
from translation.translator import Translator
from utils.errors import UserError

__all__ = [
    "Alignment",
    "Attention",
    "HeadChoice",
    "Hypothesis",
    "TokenScores",
    "Translation",
    "Translator",
    "UserError",
    "lower_capitals",
    "split_sentences",
]
