"""French to English in three lines of Python, and whatever pair a model was trained on.

from fr2en import Translator
translator = Translator.load("runs/my_run")
print(translator.translate("Le chat dort.").text)
"""

from translation.translator import Attention, Hypothesis, TokenScores, Translation, Translator
from utils.errors import UserError

__all__ = ["Attention", "Hypothesis", "TokenScores", "Translation", "Translator", "UserError"]
