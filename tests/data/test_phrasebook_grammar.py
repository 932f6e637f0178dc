"""French and English morphology of the phrasebook against forms written by hand, and its two
spellers.
"""

from __future__ import annotations

import pytest

from data.corpora.phrasebook import english, french, lexicon as lex
from data.corpora.phrasebook.clause import NP, VP, english_clause, french_clause, third_person
from data.corpora.phrasebook.lexicon import lexicon_size

# infinitive: present; imparfait je; futur je; conditionnel nous; participle
CONJUGATIONS = {
    "être": ("suis es est sommes êtes sont", "étais", "serai", "serions", "été"),
    "avoir": ("ai as a avons avez ont", "avais", "aurai", "aurions", "eu"),
    "aller": ("vais vas va allons allez vont", "allais", "irai", "irions", "allé"),
    "faire": ("fais fais fait faisons faites font", "faisais", "ferai", "ferions", "fait"),
    "pouvoir": ("peux peux peut pouvons pouvez peuvent", "pouvais", "pourrai", "pourrions", "pu"),
    "vouloir": (
        "veux veux veut voulons voulez veulent",
        "voulais",
        "voudrai",
        "voudrions",
        "voulu",
    ),
    "devoir": ("dois dois doit devons devez doivent", "devais", "devrai", "devrions", "dû"),
    "savoir": ("sais sais sait savons savez savent", "savais", "saurai", "saurions", "su"),
    "voir": ("vois vois voit voyons voyez voient", "voyais", "verrai", "verrions", "vu"),
    "venir": (
        "viens viens vient venons venez viennent",
        "venais",
        "viendrai",
        "viendrions",
        "venu",
    ),
    "revenir": (
        "reviens reviens revient revenons revenez reviennent",
        "revenais",
        "reviendrai",
        "reviendrions",
        "revenu",
    ),
    "prendre": (
        "prends prends prend prenons prenez prennent",
        "prenais",
        "prendrai",
        "prendrions",
        "pris",
    ),
    "comprendre": (
        "comprends comprends comprend comprenons comprenez comprennent",
        "comprenais",
        "comprendrai",
        "comprendrions",
        "compris",
    ),
    "mettre": ("mets mets met mettons mettez mettent", "mettais", "mettrai", "mettrions", "mis"),
    "dire": ("dis dis dit disons dites disent", "disais", "dirai", "dirions", "dit"),
    "écrire": (
        "écris écris écrit écrivons écrivez écrivent",
        "écrivais",
        "écrirai",
        "écririons",
        "écrit",
    ),
    "lire": ("lis lis lit lisons lisez lisent", "lisais", "lirai", "lirions", "lu"),
    "boire": ("bois bois boit buvons buvez boivent", "buvais", "boirai", "boirions", "bu"),
    "partir": (
        "pars pars part partons partez partent",
        "partais",
        "partirai",
        "partirions",
        "parti",
    ),
    "sortir": (
        "sors sors sort sortons sortez sortent",
        "sortais",
        "sortirai",
        "sortirions",
        "sorti",
    ),
    "dormir": (
        "dors dors dort dormons dormez dorment",
        "dormais",
        "dormirai",
        "dormirions",
        "dormi",
    ),
    "connaître": (
        "connais connais connaît connaissons connaissez connaissent",
        "connaissais",
        "connaîtrai",
        "connaîtrions",
        "connu",
    ),
    "ouvrir": (
        "ouvre ouvres ouvre ouvrons ouvrez ouvrent",
        "ouvrais",
        "ouvrirai",
        "ouvririons",
        "ouvert",
    ),
    "courir": (
        "cours cours court courons courez courent",
        "courais",
        "courrai",
        "courrions",
        "couru",
    ),
    "croire": (
        "crois crois croit croyons croyez croient",
        "croyais",
        "croirai",
        "croirions",
        "cru",
    ),
    "recevoir": (
        "reçois reçois reçoit recevons recevez reçoivent",
        "recevais",
        "recevrai",
        "recevrions",
        "reçu",
    ),
    "rire": ("ris ris rit rions riez rient", "riais", "rirai", "ririons", "ri"),
    "manger": (
        "mange manges mange mangeons mangez mangent",
        "mangeais",
        "mangerai",
        "mangerions",
        "mangé",
    ),
    "commencer": (
        "commence commences commence commençons commencez commencent",
        "commençais",
        "commencerai",
        "commencerions",
        "commencé",
    ),
    "acheter": (
        "achète achètes achète achetons achetez achètent",
        "achetais",
        "achèterai",
        "achèterions",
        "acheté",
    ),
    "préférer": (
        "préfère préfères préfère préférons préférez préfèrent",
        "préférais",
        "préférerai",
        "préférerions",
        "préféré",
    ),
    "appeler": (
        "appelle appelles appelle appelons appelez appellent",
        "appelais",
        "appellerai",
        "appellerions",
        "appelé",
    ),
    "jeter": (
        "jette jettes jette jetons jetez jettent",
        "jetais",
        "jetterai",
        "jetterions",
        "jeté",
    ),
    "nettoyer": (
        "nettoie nettoies nettoie nettoyons nettoyez nettoient",
        "nettoyais",
        "nettoierai",
        "nettoierions",
        "nettoyé",
    ),
    "envoyer": (
        "envoie envoies envoie envoyons envoyez envoient",
        "envoyais",
        "enverrai",
        "enverrions",
        "envoyé",
    ),
    "finir": (
        "finis finis finit finissons finissez finissent",
        "finissais",
        "finirai",
        "finirions",
        "fini",
    ),
    "attendre": (
        "attends attends attend attendons attendez attendent",
        "attendais",
        "attendrai",
        "attendrions",
        "attendu",
    ),
    "vendre": (
        "vends vends vend vendons vendez vendent",
        "vendais",
        "vendrai",
        "vendrions",
        "vendu",
    ),
    "lever": ("lève lèves lève levons levez lèvent", "levais", "lèverai", "lèverions", "levé"),
    "traverser": (
        "traverse traverses traverse traversons traversez traversent",
        "traversais",
        "traverserai",
        "traverserions",
        "traversé",
    ),
}


@pytest.mark.parametrize("verb", CONJUGATIONS)
def test_conjugation(verb: str) -> None:
    present, imperfect, future, conditional, participle = CONJUGATIONS[verb]
    assert " ".join(french.conjugate(verb, "present", person) for person in range(6)) == present
    assert french.conjugate(verb, "imperfect", 0) == imperfect
    assert french.conjugate(verb, "future", 0) == future
    assert french.conjugate(verb, "conditional", 3) == conditional
    assert french.participle(verb) == participle


def test_imperfect_keeps_the_sound_of_g_and_c() -> None:
    forms = [french.conjugate("manger", "imperfect", p) for p in (0, 3, 5)]
    assert forms == ["mangeais", "mangions", "mangeaient"]
    assert french.conjugate("commencer", "imperfect", 4) == "commenciez"
    assert french.conjugate("étudier", "imperfect", 3) == "étudiions"


@pytest.mark.parametrize(
    ("verb", "person", "form"),
    [
        ("parler", 1, "parle"),
        ("ouvrir", 1, "ouvre"),
        ("aller", 1, "va"),
        ("finir", 1, "finis"),
        ("prendre", 4, "prenez"),
        ("être", 4, "soyez"),
    ],
)
def test_imperative(verb: str, person: int, form: str) -> None:
    assert french.imperative(verb, person) == form


def test_participle_agreement() -> None:
    assert french.participle("mettre", True, True) == "mises"
    assert french.participle("prendre", False, True) == "pris"
    assert french.participle("devoir", True) == "due"
    assert french.participle("écrire", True) == "écrite"


@pytest.mark.parametrize(
    ("singular", "plural"),
    [
        ("cheval", "chevaux"),
        ("gâteau", "gâteaux"),
        ("souris", "souris"),
        ("hibou", "hiboux"),
        ("carte postale", "cartes postales"),
        ("journal", "journaux"),
        ("hôpital", "hôpitaux"),
        ("neveu", "neveux"),
        ("grand-mère", "grands-mères"),
        ("clé", "clés"),
        ("appareil photo", "appareils photo"),
        ("fils", "fils"),
    ],
)
def test_noun_plural(singular: str, plural: str) -> None:
    noun = next(noun for nouns in lex.NOUNS.values() for noun in nouns if noun.fr == singular)
    assert noun.fr_plural == plural


@pytest.mark.parametrize(
    ("adjective", "forms"),
    [
        ("beau", "belle beaux belles"),
        ("blanc", "blanche blancs blanches"),
        ("heureux", "heureuse heureux heureuses"),
        ("cher", "chère chers chères"),
        ("italien", "italienne italiens italiennes"),
        ("jaloux", "jalouse jaloux jalouses"),
        ("vieux", "vieille vieux vieilles"),
        ("bleu", "bleue bleus bleues"),
        ("gris", "grise gris grises"),
        ("frais", "fraîche frais fraîches"),
        ("gentil", "gentille gentils gentilles"),
        ("inquiet", "inquiète inquiets inquiètes"),
        ("rouge", "rouge rouges rouges"),
        ("bon", "bonne bons bonnes"),
        ("fatigué", "fatiguée fatigués fatiguées"),
        ("quel", "quelle quels quelles"),
        ("nouveau", "nouvelle nouveaux nouvelles"),
        ("meilleur", "meilleure meilleurs meilleures"),
    ],
)
def test_adjective_forms(adjective: str, forms: str) -> None:
    made = [
        french.adjective_form(adjective, f, p)
        for f, p in ((True, False), (False, True), (True, True))
    ]
    assert " ".join(made) == forms


@pytest.mark.parametrize(
    ("phrase", "text"),
    [
        ("je aime LE eau de LE hôtel", "J'aime l'eau de l'hôtel."),
        ("je mange LE haricot de LE héros", "Je mange le haricot du héros."),
        ("LE hibou et LE hamster", "Le hibou et le hamster."),
        ("il va à LE marché et à LES halles", "Il va au marché et aux halles."),
        ("elle va à LA école", "Elle va à l'école."),
        ("LE ami de LES enfants", "L'ami des enfants."),
        ("je viens de le voir", "Je viens de le voir."),
        ("il commence à les lire", "Il commence à les lire."),
        ("je sais que il y a de LE pain", "Je sais qu'il y a du pain."),
        ("si il pleut , si elle dort", "S'il pleut, si elle dort."),
        ("ce|cet homme , ce|cet héros , ce|cet arbre", "Cet homme, ce héros, cet arbre."),
        ("ma|mon amie et ma|mon jolie amie", "Mon amie et ma jolie amie."),
        (
            "un nouveau|nouvel ordinateur et un vieux|vieil homme",
            "Un nouvel ordinateur et un vieil homme.",
        ),
        ("un beau|bel oiseau et un beau|bel hibou", "Un bel oiseau et un beau hibou."),
        ("je y vais", "J'y vais."),
        ("jusque à huit heures", "Jusqu'à huit heures."),
        ("je ne en ai pas", "Je n'en ai pas."),
        ("LE onze mai", "Le onze mai."),
    ],
)
def test_elision_and_contraction(phrase: str, text: str) -> None:
    assert french.spell(phrase, ".") == text


def test_inversion() -> None:
    assert french.invert("mange", "il") == "mange-t-il"
    assert french.invert("a", "elles") == "a-t-elles"
    assert french.invert("prend", "elle") == "prend-elle"
    assert french.invert("veux", "tu") == "veux-tu"
    assert french.invert("va", "on") == "va-t-on"


def test_clitic_order() -> None:
    assert french.order_clitics(("le", "me")) == ("me", "le")
    assert french.order_clitics(("lui", "la")) == ("la", "lui")
    assert french.order_clitics(("en", "y")) == ("y", "en")
    assert french.order_clitics(("en", "leur")) == ("leur", "en")
    assert french.order_clitics(("les", "vous")) == ("vous", "les")


ELLE = third_person(True, False)
JE = NP("je", "I", 0, True, False, True, "my")
NOUS = NP("nous", "we", 3, True, True, True, "our")


def _french(subject: NP, vp: VP, tense: str, **options: object) -> str:
    return french.spell(french_clause(subject, vp, tense, **options), ".")  # type: ignore[arg-type]


def test_clitics_stand_right_with_negation_and_auxiliaries() -> None:
    give = VP("donner", "give", "act", clitics=("la", "lui"), preceding=(True, False))
    assert _french(JE, give, "past", negation="pas") == "Je ne la lui ai pas donnée."
    assert _french(JE, give, "near", negation="pas") == "Je ne vais pas la lui donner."
    assert _french(JE, give, "recent") == "Je viens de la lui donner."
    assert (
        _french(ELLE, VP("avoir", "have", "state", clitics=("en",)), "present", negation="plus")
        == "Elle n'en a plus."
    )
    assert (
        _french(JE, VP("aller", "go", "act", clitics=("y",)), "future", negation="jamais")
        == "Je n'y irai jamais."
    )


def test_agreement_of_the_participle_in_a_clause() -> None:
    assert (
        _french(NOUS, VP("aller", "go", "act", "à LA gare"), "past")
        == "Nous sommes allées à la gare."
    )
    assert (
        _french(ELLE, VP("lever", "get", "act", reflexive=True), "past", negation="pas")
        == "Elle ne s'est pas levée."
    )
    wash = VP("laver", "wash", "act", "LES mains", "POSS hands", reflexive=True)
    assert _french(ELLE, wash, "past") == "Elle s'est lavé les mains."
    assert (
        _french(ELLE, VP("manger", "eat", "act", "@une pomme"), "past") == "Elle a mangé une pomme."
    )


def test_articles_under_negation() -> None:
    assert (
        _french(JE, VP("boire", "drink", "act", "@dela eau"), "present", negation="pas")
        == "Je ne bois pas d'eau."
    )
    assert (
        _french(JE, VP("avoir", "have", "state", "@un chien"), "present", negation="pas")
        == "Je n'ai pas de chien."
    )
    assert _french(JE, VP("boire", "drink", "act", "@du lait"), "present") == "Je bois du lait."


def test_inverted_question_keeps_its_noun_in_front() -> None:
    marie = NP("Marie", "Marie", 2, True, possessive="her")
    vp = VP("manger", "eat", "act", "@du pain", "@some bread")
    assert (
        french.spell(french_clause(marie, vp, "past", invert=True), "?")
        == "Marie a-t-elle mangé du pain?"
    )
    assert (
        english.spell(english_clause(marie, vp, "past", question=True), "?")
        == "Did Marie eat some bread?"
    )


def test_reflexive_infinitive_agrees_with_its_subject() -> None:
    vp = VP("vouloir", "want", "state", "SE lever", "to get up")
    assert _french(NOUS, vp, "present", negation="pas") == "Nous ne voulons pas nous lever."


@pytest.mark.parametrize(
    ("tense", "options", "text"),
    [
        ("present", {}, "She is eating."),
        ("present", {"mode": "habit"}, "She eats."),
        ("present", {"negation": "pas"}, "She doesn't eat."),
        ("present", {"negation": "plus"}, "She no longer eats."),
        ("present", {"question": True}, "Does she eat."),
        ("past", {}, "She ate."),
        ("past", {"negation": "jamais"}, "She has never eaten."),
        ("past", {"negation": "rien"}, "She didn't eat anything."),
        ("past", {"negation": "pas encore"}, "She hasn't eaten yet."),
        ("imperfect", {}, "She was eating."),
        ("imperfect", {"mode": "habit"}, "She used to eat."),
        ("future", {"negation": "pas"}, "She won't eat."),
        ("conditional", {}, "She would eat."),
        ("near", {}, "She is going to eat."),
        ("recent", {}, "She has just eaten."),
        ("present", {"mode": "since"}, "She has been eating."),
    ],
)
def test_english_tenses(tense: str, options: dict[str, str], text: str) -> None:
    vp = VP("manger", "eat", "act")
    assert english.spell(english_clause(ELLE, vp, tense, **options), ".") == text  # type: ignore[arg-type]


def test_modals() -> None:
    swim = VP("pouvoir", "can", "state", "nager", "swim")
    must = VP("devoir", "must", "state", "partir", "leave")
    say = lambda vp, tense, **o: english.spell(english_clause(ELLE, vp, tense, **o), ".")  # noqa: E731
    assert say(swim, "present", negation="pas") == "She can't swim."
    assert say(swim, "future") == "She will be able to swim."
    assert say(swim, "imperfect", negation="pas") == "She couldn't swim."
    assert say(must, "imperfect") == "She had to leave."
    assert say(must, "future") == "She will have to leave."
    assert say(must, "present", question=True) == "Does she have to leave."
    assert say(must, "conditional") == "She should leave."


@pytest.mark.parametrize(
    ("phrase", "text"),
    [
        ("a apple and a car", "An apple and a car."),
        ("a hour in a university", "An hour in a university."),
        ("a uniform , a old hat , a useful egg", "A uniform, an old hat, a useful egg."),
        ("Paul 's car", "Paul's car."),
    ],
)
def test_english_articles(phrase: str, text: str) -> None:
    assert english.spell(phrase, ".") == text


@pytest.mark.parametrize(
    ("base", "forms"),
    [
        ("go", "goes went gone going"),
        ("eat", "eats ate eaten eating"),
        ("study", "studies studied studied studying"),
        ("stop", "stops stopped stopped stopping"),
        ("lie", "lies lied lied lying"),
        ("write", "writes wrote written writing"),
        ("swim", "swims swam swum swimming"),
        ("watch", "watches watched watched watching"),
        ("play", "plays played played playing"),
        ("take", "takes took taken taking"),
        ("prefer", "prefers preferred preferred preferring"),
        ("open", "opens opened opened opening"),
        ("show", "shows showed shown showing"),
        ("see", "sees saw seen seeing"),
        ("put", "puts put put putting"),
        ("be", "is was been being"),
    ],
)
def test_english_verbs(base: str, forms: str) -> None:
    made = (
        english.third_person(base),
        english.past(base),
        english.past_participle(base),
        english.ing(base),
    )
    assert " ".join(made) == forms


def test_english_nouns_and_comparison() -> None:
    made = [
        english.plural(word)
        for word in ("child", "mouse", "knife", "city", "tomato", "movie theater", "watch", "boy")
    ]
    assert made == [
        "children",
        "mice",
        "knives",
        "cities",
        "tomatoes",
        "movie theaters",
        "watches",
        "boys",
    ]
    assert [english.comparative(w) for w in ("big", "happy", "good", "nice", "famous")] == [
        "bigger",
        "happier",
        "better",
        "nicer",
        "more famous",
    ]
    assert [english.superlative(w) for w in ("bad", "sad", "expensive")] == [
        "worst",
        "saddest",
        "most expensive",
    ]


@pytest.mark.parametrize(
    ("n", "fr", "en"),
    [
        (21, "vingt et un", "twenty-one"),
        (71, "soixante et onze", "seventy-one"),
        (80, "quatre-vingts", "eighty"),
        (81, "quatre-vingt-un", "eighty-one"),
        (99, "quatre-vingt-dix-neuf", "ninety-nine"),
        (77, "soixante-dix-sept", "seventy-seven"),
        (16, "seize", "sixteen"),
    ],
)
def test_numbers(n: int, fr: str, en: str) -> None:
    assert (french.number(n), english.number(n)) == (fr, en)


def test_the_lexicon_is_large_and_its_forms_exist() -> None:
    assert lexicon_size() >= 400
    for predicate in (
        *lex.THINGS,
        *lex.PERSONS,
        *lex.DATIVES,
        *lex.ABOUT,
        *lex.GIVING,
        *lex.SIMPLE,
    ):
        assert french.participle(predicate.fr)
        assert all(kind in lex.NOUNS or kind in lex.GENERIC for kind in predicate.objects), (
            predicate
        )
