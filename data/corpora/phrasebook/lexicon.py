"""The words: nouns, names, adjectives, predicates, adverbs, places and time expressions, with their
meanings.

Tables are text (see tables.py). Semantic kinds say what can stand with what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from data.corpora.phrasebook import english, french
from data.corpora.phrasebook.tables import pairs, rows, words


@dataclass(frozen=True, slots=True)
class Noun:
    fr: str
    fr_plural: str
    feminine: bool
    en: str
    en_plural: str
    kind: str


@dataclass(frozen=True, slots=True)
class Adjective:
    fr: str
    en: str
    kinds: frozenset[str]  # kinds of nouns that it can describe
    before: bool  # stands before its noun
    comparable: bool


@dataclass(frozen=True, slots=True)
class Predicate:
    """A verb with its meaning. `aspect`: act (can be going on), state, event (has no extent).

    `objects`: kinds of the direct object; `fr_prep` comes between the French verb and its object.
    """

    fr: str
    en: str
    aspect: str
    reflexive: bool = False
    fr_rest: str = ""  # fixed words after the verb
    en_rest: str = ""
    objects: tuple[str, ...] = ()
    fr_prep: str = ""
    determiners: str = (
        "dipt"  # definite, indefinite, possessive, this; g generic, a partitive, n counted
    )
    # adjuncts that fit: l place, r room, c city, m manner, w company, t clock time, u until a time
    extras: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """`at` is where something happens, `to` where one goes; French says both alike."""

    fr: str
    at: str
    to: str


W = TypeVar("W", Noun, Predicate)


def among(table: Sequence[W], members: str) -> tuple[W, ...]:
    """The entries of a table whose French word is one of these."""
    return tuple(word for word in table if word.fr in members.split())


def _noun(kind: str, cells: list[str]) -> Noun:
    fr, gender, en, fr_plural, en_plural = [*cells, "", "", ""][:5]
    return Noun(
        fr, fr_plural or french.plural(fr), gender == "f", en, en_plural or english.plural(en), kind
    )


# noun / gender / English [/ French plural [/ English plural]]
NOUN_TABLES = {
    "person": """
        ami/m/friend; amie/f/friend; voisin/m/neighbor; voisine/f/neighbor; étudiant/m/student; étudiante/f/student
        professeur/m/teacher; médecin/m/doctor; boulanger/m/baker; boulangère/f/baker; infirmière/f/nurse
        avocat/m/lawyer; avocate/f/lawyer; acteur/m/actor; actrice/f/actress; chanteur/m/singer; chanteuse/f/singer
        serveur/m/waiter; serveuse/f/waitress; vendeur/m/salesman; vendeuse/f/saleswoman; homme/m/man; femme/f/woman
        garçon/m/boy; fille/f/girl; enfant/m/child; touriste/m/tourist; collègue/m/colleague; directeur/m/manager
        directrice/f/manager; facteur/m/postman; client/m/customer; cliente/f/customer; journaliste/f/journalist
        musicien/m/musician; musicienne/f/musician; ouvrier/m/worker; policier/m/policeman//policemen
        pharmacien/m/pharmacist; dame/f/lady; ingénieur/m/engineer; dentiste/m/dentist; héros/m/hero
    """,
    "kin": """
        mère/f/mother; père/m/father; frère/m/brother; sœur/f/sister; oncle/m/uncle; tante/f/aunt; cousin/m/cousin
        cousine/f/cousin; grand-mère/f/grandmother/grands-mères; grand-père/m/grandfather/grands-pères; fils/m/son
        fille/f/daughter; mari/m/husband; femme/f/wife; neveu/m/nephew; nièce/f/niece
    """,
    "animal": """
        chat/m/cat; chien/m/dog; cheval/m/horse; oiseau/m/bird; lapin/m/rabbit; vache/f/cow; souris/f/mouse
        poule/f/hen; hamster/m/hamster; hibou/m/owl/hiboux; âne/m/donkey; canard/m/duck
    """,
    "food": """
        pomme/f/apple; orange/f/orange; poire/f/pear; banane/f/banana; œuf/m/egg; gâteau/m/cake; tomate/f/tomato
        carotte/f/carrot; haricot/m/bean; sandwich/m/sandwich; omelette/f/omelet; abricot/m/apricot
        fraise/f/strawberry; cerise/f/cherry; croissant/m/croissant; biscuit/m/cookie; tarte/f/pie; crêpe/f/pancake
    """,
    "mass": """
        pain/m/bread; fromage/m/cheese; viande/f/meat; poulet/m/chicken; riz/m/rice; soupe/f/soup; beurre/m/butter
        chocolat/m/chocolate; poisson/m/fish; confiture/f/jam; glace/f/ice cream; miel/m/honey; salade/f/salad
        jambon/m/ham
    """,
    "drink": """
        eau/f/water; lait/m/milk; café/m/coffee; thé/m/tea; vin/m/wine; bière/f/beer; limonade/f/lemonade
        jus d'orange/m/orange juice; jus de pomme/m/apple juice
    """,
    "text": """
        livre/m/book; journal/m/newspaper; roman/m/novel; article/m/article; histoire/f/story; magazine/m/magazine
        poème/m/poem
    """,
    "letter": "lettre/f/letter; message/m/message; carte postale/f/postcard/cartes postales",
    "clothes": """
        robe/f/dress; chemise/f/shirt; chapeau/m/hat; manteau/m/coat; jupe/f/skirt; veste/f/jacket; pull/m/sweater
        écharpe/f/scarf//scarves; cravate/f/tie; uniforme/m/uniform
    """,
    "thing": """
        clé/f/key; sac/m/bag; parapluie/m/umbrella; stylo/m/pen; montre/f/watch; valise/f/suitcase
        portefeuille/m/wallet; billet/m/ticket; passeport/m/passport; cadeau/m/present; photo/f/photo; jouet/m/toy
        ballon/m/ball; dictionnaire/m/dictionary; bague/f/ring; panier/m/basket; couteau/m/knife
    """,
    "device": """
        téléphone/m/phone; ordinateur/m/computer; radio/f/radio; horloge/f/clock
        appareil photo/m/camera/appareils photo; télévision/f/television; lampe/f/lamp; machine/f/machine
        outil/m/tool; guitare/f/guitar; piano/m/piano
    """,
    "dish": "verre/m/glass; assiette/f/plate; tasse/f/cup; bouteille/f/bottle; vase/m/vase",
    "vehicle": "voiture/f/car; vélo/m/bike; moto/f/motorcycle; camion/m/truck; bateau/m/boat",
    "transport": "train/m/train; bus/m/bus; avion/m/plane; taxi/m/taxi; métro/m/subway; tramway/m/tram",
    "furniture": """
        table/f/table; chaise/f/chair; lit/m/bed; armoire/f/wardrobe; fauteuil/m/armchair; canapé/m/couch
        bureau/m/desk; étagère/f/shelf//shelves
    """,
    "building": """
        école/f/school; gare/f/station; musée/m/museum; hôpital/m/hospital; hôtel/m/hotel; restaurant/m/restaurant
        bibliothèque/f/library; boulangerie/f/bakery; banque/f/bank; cinéma/m/movie theater; théâtre/m/theater
        église/f/church; université/f/university; pharmacie/f/pharmacy; magasin/m/store; supermarché/m/supermarket
        château/m/castle; usine/f/factory; piscine/f/swimming pool; aéroport/m/airport
    """,
    "home": "maison/f/house; appartement/m/apartment",
    "room": "chambre/f/bedroom; cuisine/f/kitchen; salon/m/living room; jardin/m/garden; garage/m/garage",
    "area": """
        parc/m/park; plage/f/beach; village/m/village; ville/f/town; forêt/f/forest; rue/f/street; île/f/island
        quartier/m/neighborhood; place/f/square
    """,
    "nature": "fleur/f/flower; arbre/m/tree; montagne/f/mountain; rivière/f/river; lac/m/lake; pont/m/bridge",
    "opening": "porte/f/door; fenêtre/f/window; boîte/f/box; tiroir/m/drawer",
    "show": "film/m/movie; match/m/game; émission/f/show; spectacle/m/performance; pièce/f/play",
    "study": """
        leçon/f/lesson; exercice/m/exercise; question/f/question; problème/m/problem; règle/f/rule; mot/m/word
        examen/m/exam
    """,
    "song": "chanson/f/song",
    "picture": "tableau/m/painting; dessin/m/drawing; carte/f/map",
}
NOUNS = {
    kind: tuple(_noun(kind, cells) for cells in rows(table)) for kind, table in NOUN_TABLES.items()
}
# Parts of the kinds above, for verbs that take only these.
NOUNS |= {
    name: among(NOUNS[kind], members)
    for name, kind, members in rows("""
        car/vehicle/voiture camion moto
        pet/animal/chat chien lapin hamster
        surface/furniture/table chaise lit bureau étagère canapé
        container/opening/boîte tiroir
        doorway/opening/porte fenêtre
        tree/nature/arbre
        written/text/livre roman article histoire poème
        task/study/leçon exercice examen
        sense/study/leçon question problème règle mot
        sight/building/musée château église université
        town/area/village ville quartier île
        street/area/rue place
        house/home/maison
        cuttable/mass/pain fromage viande jambon
    """)
}
_KNOWN = "ami amie voisin voisine collègue professeur médecin avocat avocate directeur directrice client cliente"
NOUNS["known"] = among(NOUNS["person"], _KNOWN)
NOUNS["public"] = tuple(
    noun for noun in NOUNS["person"] if noun.fr not in ("ami", "amie", "collègue")
)

# name / gender / English
NAMES = tuple(
    (name, gender == "f")
    for name, gender in rows("""
    Marie/f; Paul/m; Julie/f; Pierre/m; Anne/f; Luc/m; Sophie/f; Antoine/m; Claire/f; Marc/m; Émilie/f; Julien/m
    Alice/f; Martin/m; Hélène/f; Éric/m
    """)
)

# What people like, learn, play, speak: nouns with the article in French and without it in English.
GENERIC = {
    kind: pairs(table)
    for kind, table in {
        "music": """
            LA musique=music; LE jazz=jazz; LA danse=dance; LE sport=sports; LE théâtre=theater; LE cinéma=cinema
        """,
        "language": """
            LE français=French; LE anglais=English; LE espagnol=Spanish; LE italien=Italian; LE allemand=German
            LE japonais=Japanese
        """,
        "subject": "LA histoire=history; LES mathématiques=mathematics; LA biologie=biology; LA géographie=geography",
        "game": """
            à LE tennis=tennis; à LES échecs=chess; à LE football=soccer; à LES cartes=cards; à LE basket=basketball
        """,
        "instrument": "de LE piano=the piano; de LA guitare=the guitar; de LE violon=the violin; de LA flûte=the flute",
        "meal": "LE petit déjeuner=breakfast; LE déjeuner=lunch; LE dîner=dinner",
    }.items()
}

# adjective / English / kinds / b = before the noun / - = not compared
ADJECTIVES = tuple(
    Adjective(
        fr,
        en,
        frozenset(kinds.replace("home", "home room").split()),
        "b" in flags,
        "-" not in flags,
    )
    for fr, en, kinds, flags in (
        [*cells, ""][:4]
        for cells in rows("""
    beau/beautiful/animal clothes home building area nature picture song thing vehicle/b
    bon/good/food mass drink text show restaurant song transport study/b
    mauvais/bad/show text study song/b
    grand/big/home building area nature furniture vehicle opening thing dish clothes animal device picture food/b
    petit/small/home building area nature furniture vehicle opening thing dish clothes animal device picture food/b
    vieux/old/person animal home building vehicle clothes thing device furniture text picture opening show song/b
    nouveau/new/home building vehicle clothes device text show song furniture study thing/b-
    jeune/young/person animal/b
    joli/pretty/clothes home area nature picture song thing dish/b
    gros/fat/animal/b
    long/long/clothes text letter show study song area/b
    rouge/red/clothes thing vehicle furniture dish opening/-
    noir/black/clothes thing vehicle furniture animal device/-
    blanc/white/clothes dish vehicle furniture animal home opening/-
    vert/green/clothes thing vehicle furniture dish opening/-
    bleu/blue/clothes thing vehicle furniture dish opening/-
    jaune/yellow/clothes thing vehicle dish/-
    gris/gray/clothes vehicle animal furniture device/-
    intéressant/interesting/text letter show study person
    rapide/fast/vehicle transport device
    lent/slow/transport vehicle device
    cher/expensive/clothes thing vehicle device furniture building home transport dish picture food drink
    français/French/person text show song food drink/-
    anglais/English/person text show song vehicle/-
    italien/Italian/person food drink show song clothes restaurant vehicle/-
    espagnol/Spanish/person song show food drink/-
    américain/American/person text show vehicle song/-
    heureux/happy/person kin animal
    triste/sad/person kin show song text
    fatigué/tired/person kin animal
    malade/sick/person kin animal/-
    content/pleased/person kin/-
    gentil/kind/person kin/b
    intelligent/intelligent/person kin animal
    drôle/funny/person kin show text
    célèbre/famous/person building text picture song area
    riche/rich/person kin
    pauvre/poor/person kin
    fort/strong/person kin animal
    timide/shy/person kin
    sérieux/serious/person kin study
    honnête/honest/person kin
    poli/polite/person kin
    patient/patient/person kin
    paresseux/lazy/person kin animal
    courageux/brave/person kin animal
    prudent/careful/person kin
    fier/proud/kin
    inquiet/worried/person kin
    nerveux/nervous/person kin
    occupé/busy/person kin
    jaloux/jealous/person kin
    difficile/difficult/study text
    facile/easy/study text
    utile/useful/thing device study text
    important/important/study text letter building
    moderne/modern/building home furniture device picture
    confortable/comfortable/furniture home clothes vehicle building transport
    propre/clean/clothes home dish vehicle area
    sale/dirty/clothes home dish vehicle area
    vide/empty/dish opening home/-
    lourd/heavy/furniture opening device
    léger/light/clothes device
    froid/cold/drink food home nature
    chaud/hot/drink food
    frais/fresh/food mass drink
    délicieux/delicious/food mass drink/-
    sucré/sweet/food drink
    dangereux/dangerous/area animal vehicle nature
    calme/quiet/area home building
    bruyant/noisy/area vehicle device building transport animal
    ouvert/open/opening building/-
    fermé/closed/opening building/-
    cassé/broken/device dish furniture opening/-
    étrange/strange/text picture show letter song animal
    magnifique/magnificent/area nature picture building clothes show/-
    amusant/amusing/show text song study
    ennuyeux/boring/show text study person
    populaire/popular/show song building text
    élégant/elegant/clothes person
    solide/sturdy/furniture device opening
    pratique/handy/device thing
""")
    )
)
# Said of people before or after the noun; the others of the table only after the verb.
PERSON_ATTRIBUTES = words(
    "jeune vieux français anglais italien espagnol américain célèbre timide gentil élégant"
)
PASSING = words(
    "malade fatigué content triste heureux inquiet nerveux occupé prêt seul jaloux"
)  # states, not traits
# Said of people after the verb only: other words in English, or another place in French.
PERSON_ADJECTIVES = pairs("grand=tall; beau=good-looking; prêt=ready; seul=alone; amoureux=in love")


def _act(
    fr: str, en: str, objects: str = "", determiners: str = "", extras: str = "", **more: str | bool
) -> Predicate:
    """A predicate from compact fields. `se`/`s'` before the infinitive marks a reflexive verb; POSS
    in the English is the subject's own possessive; words after the infinitive and after the English
    verb are fixed.
    """
    reflexive = fr.startswith(("se ", "s'"))
    verb, _, fr_rest = fr.removeprefix("se ").removeprefix("s'").partition(" ")
    base, _, en_rest = en.partition(" ")
    return Predicate(
        fr=verb,
        en=base,
        reflexive=reflexive,
        fr_rest=fr_rest,
        en_rest=en_rest,
        objects=tuple(objects.split()),
        determiners=determiners,
        extras=extras,
        aspect=str(more.get("aspect", "act")),
        fr_prep=str(more.get("fr_prep", "")),
    )


def _state(
    fr: str, en: str, objects: str = "", determiners: str = "", extras: str = "", **more: str | bool
) -> Predicate:
    return _act(fr, en, objects, determiners, extras, aspect="state", **more)


def _event(
    fr: str, en: str, objects: str = "", determiners: str = "", extras: str = "", **more: str | bool
) -> Predicate:
    return _act(fr, en, objects, determiners, extras, aspect="event", **more)


THINGS: tuple[Predicate, ...] = (  # their object is a thing: clitic le, la, les is "it" or "them"
    _act("manger", "eat", "food", "din"),
    _act("manger", "eat", "mass", "a"),
    _act("boire", "drink", "drink", "a"),
    _act("acheter", "buy", "food clothes thing text dish furniture vehicle", "itn"),
    _act("acheter", "buy", "mass drink", "a"),
    _act("vendre", "sell", "vehicle furniture home", "pt"),
    _act("lire", "read", "text letter", "ditp"),
    _act("écrire", "write", "letter written", "in"),
    _act("chercher", "look for", "thing device", "dp"),
    _event("trouver", "find", "thing", "dip"),
    _event("perdre", "lose", "thing", "p"),
    _event("oublier", "forget", "thing clothes", "p"),
    _act("prendre", "take", "transport", "d"),
    _act("mettre", "put on", "clothes", "itp"),
    _act("porter", "wear", "clothes", "itp"),
    _act("ouvrir", "open", "opening letter", "dt"),
    _act("fermer", "close", "opening", "dt"),
    _act("laver", "wash", "vehicle dish clothes", "dpt"),
    _act("regarder", "watch", "show", "dit"),
    _act("écouter", "listen to", "song", "dit"),
    _act("chanter", "sing", "song", "dit"),
    _act("expliquer", "explain", "sense", "dt"),
    _state("comprendre", "understand", "sense text", "dt"),
    _act("apprendre", "learn", "language", "g"),
    _act("étudier", "study", "subject", "g"),
    _act("préparer", "prepare", "meal", "g"),
    _state("parler", "speak", "language", "g"),
    _event("casser", "break", "device dish", "dip"),
    _act("réparer", "repair", "vehicle device", "dpt"),
    _act("conduire", "drive", "car", "pt"),
    _act("choisir", "choose", "clothes text thing", "it"),
    _event("finir", "finish", "task text", "dt"),
    _event("commencer", "start", "task text", "dt"),
    _act("nettoyer", "clean", "home room vehicle", "dpt"),
    _event("recevoir", "receive", "letter", "in"),
    _act("construire", "build", "house", "i"),
    _act("visiter", "visit", "sight town", "dit"),
    _act("traverser", "cross", "street", "dt"),
    _act("peindre", "paint", "opening home room", "dp"),
    _act("dessiner", "draw", "animal nature", "in"),
    _act("cacher", "hide", "thing", "p"),
    _act("utiliser", "use", "device", "dpt"),
    _act("jeter", "throw away", "letter text", "dt"),
    _act("couper", "cut", "cuttable", "d"),
    _state("aimer", "like", "food mass drink music subject", "g"),
    _state("adorer", "love", "food mass drink music", "g"),
    _state("détester", "hate", "food mass drink subject", "g"),
    _state("préférer", "prefer", "food mass drink music", "g"),
    _state("vouloir", "want", "clothes device vehicle", "in"),
    _state("vouloir", "want", "mass drink", "a"),
    _state("avoir", "have", "animal vehicle clothes home device", "ian"),
    _state("avoir", "have", "mass drink", "a"),
)
PERSONS: tuple[
    Predicate, ...
] = (  # their object is a person: clitic le, la, les is "him", "her" or "them"
    _state("voir", "see", "person kin", "dip", "l"),
    _event("rencontrer", "meet", "person", "dit", "l"),
    _act("attendre", "wait for", "person kin", "dpt", "l"),
    _act("aider", "help", "person kin", "dpi"),
    _state("connaître", "know", "person kin", "dpt"),
    _event("inviter", "invite", "person kin", "dp"),
    _act("appeler", "call", "person kin", "dp"),
    _event("remercier", "thank", "person kin", "dp"),
    _act("suivre", "follow", "person", "dt"),
    _act("embrasser", "kiss", "kin", "p"),
    _act("chercher", "look for", "person", "dt"),
)
DATIVES: tuple[Predicate, ...] = (  # à + person: clitic lui, leur
    _act("parler", "talk to", "person kin", "dpit", fr_prep="à"),
    _act("téléphoner", "phone", "person kin", "dp", fr_prep="à"),
    _act("répondre", "answer", "person kin", "dp", fr_prep="à"),
    _act("écrire", "write to", "person kin", "pd", fr_prep="à"),
    _act("sourire", "smile at", "person kin", "dp", fr_prep="à"),
    _act("mentir", "lie to", "person kin", "dp", fr_prep="à"),
    _act("obéir", "obey", "kin", "p", fr_prep="à"),
)
ABOUT: tuple[Predicate, ...] = (  # de + noun: relative dont
    _act("parler", "talk about", "show text study kin", "dt", fr_prep="de"),
    _act("rêver", "dream about", "home vehicle", "i", fr_prep="de"),
    _act("s'occuper", "take care of", "animal kin", "dp", fr_prep="de"),
    _state("se souvenir", "remember", "person song show", "dt", fr_prep="de"),
)
GIVING: tuple[Predicate, ...] = (  # thing + à + person
    _act("donner", "give", "thing text dish", "diptn"),
    _act("montrer", "show", "thing text picture clothes", "dipt"),
    _act("envoyer", "send", "letter", "ditn"),
    _act("apporter", "bring", "thing dish text", "ditn"),
    _act("prêter", "lend", "vehicle text thing", "p"),
)
SIMPLE: tuple[Predicate, ...] = (  # no object
    _act("dormir", "sleep", extras="rmu"),
    _act("travailler", "work", extras="lmwu"),
    _act("courir", "run", extras="m"),
    _act("nager", "swim", extras="mw"),
    _act("danser", "dance", extras="mw"),
    _act("chanter", "sing", extras="mw"),
    _act("pleurer", "cry", extras="r"),
    _act("rire", "laugh", extras="w"),
    _act("marcher", "walk", extras="mw"),
    _act("voyager", "travel", extras="wc"),
    _act("étudier", "study", extras="lrwu"),
    _act("cuisiner", "cook", extras="mw"),
    _act("attendre", "wait", extras="lr"),
    _act("fumer", "smoke", extras="r"),
    _event("tomber", "fall", extras="l"),
    _act("arriver", "arrive", extras="t"),
    _act("partir", "leave", extras="wt"),
    _act("sortir", "go out", extras="wt"),
    _act("rester", "stay", extras="lwr"),
    _act("déjeuner", "have lunch", extras="lwt"),
    _act("dîner", "have dinner", extras="lwt"),
    _state("habiter", "live"),
    _act("revenir", "come back", extras="t"),
    _act("rentrer", "go home", extras="t"),
    _act("jouer", "play", "game instrument", "g", "w"),
    _act("écouter LA radio", "listen to the radio", extras="r"),
    _act("écouter @dela musique", "listen to music", extras="rw"),
    _act("faire LES courses", "do the shopping", extras="w"),
    _act("faire LA vaisselle", "do the dishes", extras="w"),
    _act("faire LE ménage", "do the housework"),
    _act("faire POSS_LES devoirs", "do POSS homework", extras="r"),
    _act("faire @un gâteau", "make a cake", extras="w"),
    _act("se lever", "get up", extras="t"),
    _act("se coucher", "go to bed", extras="t"),
    _act("se réveiller", "wake up", extras="t"),
    _act("s'habiller", "get dressed", extras="r"),
    _act("se promener", "go for a walk", extras="lw"),
    _act("se reposer", "rest", extras="rl"),
    _act("se dépêcher", "hurry"),
    _act("s'amuser", "have fun", extras="lw"),
    _state("s'ennuyer", "be bored", extras="l"),
    _act("se laver LES mains", "wash POSS hands"),
    _act("se brosser LES dents", "brush POSS teeth"),
    _event("se tromper", "make a mistake"),
    _event("se marier", "get married"),
)
# avoir + noun: state, named for causes
FEELINGS = pairs(
    "faim=hungry; soif=thirsty; froid=cold; chaud=hot; sommeil=sleepy; peur=afraid; raison=right; tort=wrong"
)

PLACES = tuple(
    Place(fr, at, to[0] if to else at.replace("at ", "to ", 1))
    for fr, at, *to in rows("""
    à LA école/at school; à LA maison/at home/home; à LA gare/at the station; à LE marché/at the market
    à LE musée/at the museum; à LE hôpital/at the hospital; à LE hôtel/at the hotel
    à LE restaurant/at the restaurant; à LA bibliothèque/at the library; à LA plage/at the beach
    à LA boulangerie/at the bakery; à LA banque/at the bank; à LE bureau/at the office; à LE cinéma/at the movies
    à LE théâtre/at the theater; à LA église/at church; à LA université/at the university
    à LA pharmacie/at the pharmacy; à LE aéroport/at the airport; à LA piscine/at the swimming pool
    à LA usine/at the factory; à LE supermarché/at the supermarket
    à LA campagne/in the countryside/to the countryside; à LA montagne/in the mountains/to the mountains
    à LE parc/at the park; chez LE médecin/at the doctor's
""")
)
CITIES = tuple(
    Place(fr, "in " + en, "to " + en)
    for fr, en in pairs("""
    à Paris=Paris; à Lyon=Lyon; à Londres=London; à Rome=Rome; à Bruxelles=Brussels; à Genève=Geneva
    en France=France; en Italie=Italy; en Espagne=Spain; en Angleterre=England; en Allemagne=Germany
    à LE Japon=Japan; à LE Canada=Canada; à LE Portugal=Portugal; à LES États-Unis=the United States
""")
)
ROOMS = pairs("""
    dans LA cuisine=in the kitchen; dans LE salon=in the living room; dans LA chambre=in the bedroom
    dans LE jardin=in the garden; dans LE train=on the train; dans LE bus=on the bus
""")
# preposition / English / what the ground is / what can be there
POSITIONS = rows("""
    sur/on/surface/thing dish text letter clothes pet
    sous/under/furniture/thing pet
    devant/in front of/building/vehicle public tree
    derrière/behind/building/vehicle tree
    derrière/behind/doorway furniture/pet thing
    devant/in front of/doorway/pet public furniture
    à côté de/next to/building/building tree vehicle
    à côté de/next to/furniture/furniture pet
    en face de/across from/building/building
    près de/near/building/building vehicle public
    dans/in/room/furniture pet device public
    dans/in/container/thing letter
""")
MANNERS = pairs(
    "bien=well; mal=badly; vite=fast; lentement=slowly; beaucoup=a lot; ensemble=together"
)
MANNER_VERBS = dict(
    pairs("""
    dormir=bien mal beaucoup; travailler=bien beaucoup vite lentement; courir=vite lentement beaucoup
    nager=bien vite mal lentement; danser=bien mal beaucoup; chanter=bien mal; marcher=vite lentement beaucoup
    cuisiner=bien mal beaucoup
""")
)
# adverbials of time by what they ask of the tense
HABITUAL = pairs("""
    tous les jours=every day; tous les matins=every morning; tous les soirs=every evening; le lundi=on Mondays
    le mardi=on Tuesdays; le samedi=on Saturdays; le dimanche=on Sundays; le soir=in the evening
    une fois par semaine=once a week; en été=in summer; en hiver=in winter
""")
NOW = pairs("en ce moment=at the moment; maintenant=now")
FREQUENCY = pairs("souvent=often; toujours=always; parfois=sometimes; rarement=rarely")
PAST_UNITS = pairs("jour=day; semaine=week; mois=month; an=year; heure=hour; minute=minute")
PAST = pairs("""
    hier=yesterday; hier matin=yesterday morning; hier soir=last night; ce matin=this morning
    LA semaine dernière=last week; LE mois dernier=last month; LE année dernière=last year
    lundi dernier=last Monday; vendredi dernier=last Friday; samedi dernier=last Saturday
    avant-hier=the day before yesterday
""")
FUTURE = pairs("""
    demain=tomorrow; demain matin=tomorrow morning; demain soir=tomorrow evening; ce soir=tonight
    LA semaine prochaine=next week; LE mois prochain=next month; LE année prochaine=next year
    lundi prochain=next Monday; mercredi prochain=next Wednesday; dimanche prochain=next Sunday; bientôt=soon
    plus tard=later
""")
# with the imparfait of a state or of something going on
BACKGROUND = pairs("hier à midi=at noon yesterday; à ce moment-là=at that moment")
FORMERLY = pairs(
    "autrefois=in the past; à cette époque=at that time; pendant LES vacances=during the holidays"
)
MONTHS = pairs("""
    janvier=January; février=February; mars=March; avril=April; mai=May; juin=June; juillet=July; août=August
    septembre=September; octobre=October; novembre=November; décembre=December
""")
DAYS = pairs("""
    lundi=Monday; mardi=Tuesday; mercredi=Wednesday; jeudi=Thursday; vendredi=Friday; samedi=Saturday
    dimanche=Sunday
""")
PROFESSIONS = among(
    NOUNS["person"],
    "étudiant médecin boulanger infirmière avocat acteur actrice chanteur chanteuse serveur serveuse "
    "journaliste musicien ingénieur dentiste professeur pharmacien",
)
# French / English of what the weather does, by tense: (verb, rest, English verb, English rest)
WEATHER = rows("""
    pleuvoir//rain/; neiger//snow/; faire/beau/be/sunny; faire/froid/be/cold; faire/chaud/be/hot
    faire/doux/be/mild; faire/frais/be/cool; faire/@du vent/be/windy
""")


def _cause(cells: list[str]) -> tuple[str, str, tuple[tuple[tuple[str, str], str], ...]]:
    effects = []
    for cell in cells[2:]:
        fr, _, en = cell.removeprefix("not ").partition("=")
        effects.append(((fr, en), "pas" if cell.startswith("not ") else ""))
    return cells[0], cells[1], tuple(effects)


# state or weather / English / what it leads to, or keeps one from: French=English; + goes on with
# the line above
CAUSES = tuple(
    _cause(cells)
    for cells in rows(
        """
avoir faim/be hungry/manger @un sandwich=eat a sandwich/préparer LE dîner=prepare dinner
+/manger @du pain=eat @some bread/aller à LE restaurant=go to the restaurant/faire @un gâteau=make a cake
avoir soif/be thirsty/boire @dela eau=drink @some water/boire un verre de lait=drink a glass of milk
+/acheter @dela limonade=buy @some lemonade/prendre une bouteille de eau=take a bottle of water
avoir froid/be cold/fermer LA fenêtre=close the window/mettre POSS_M manteau=put on POSS coat
+/boire @du thé=drink @some tea/not sortir=go out/mettre POSS_F écharpe=put on POSS scarf
avoir chaud/be hot/ouvrir LA fenêtre=open the window/boire @dela eau=drink @some water
+/aller à LA piscine=go to the swimming pool/not mettre POSS_F veste=put on POSS jacket
+/manger @dela glace=eat @some ice cream
avoir sommeil/be sleepy/se coucher=go to bed/boire @du café=drink @some coffee
+/not regarder LE film=watch the movie/rentrer=go home
avoir peur/be afraid/fermer LA porte=close the door/pleurer=cry/appeler LA police=call the police
+/not sortir=go out/rentrer=go home
être fatigué/be tired/se coucher=go to bed/se reposer=rest/rester à LA maison=stay at home/not sortir=go out
+/not faire LA vaisselle=do the dishes/rentrer=go home/not travailler=work
être malade/be sick/rester à LA maison=stay at home/appeler LE médecin=call the doctor
+/not aller à LE bureau=go to the office/not aller à LA école=go to school/not travailler=work
+/aller à LA pharmacie=go to the pharmacy/manger @dela soupe=eat @some soup
être heureux/be happy/chanter=sing/danser=dance/rire=laugh/not pleurer=cry
être triste/be sad/pleurer=cry/rester à LA maison=stay at home/not sortir=go out/not chanter=sing
+/écouter @dela musique=listen to music
être en retard/be late/se dépêcher=hurry/courir=run/prendre @un taxi=take a taxi
+/not faire LES courses=do the shopping
avoir @un examen/have an exam/étudier=study/travailler=work/not sortir=go out
+/aller à LA bibliothèque=go to the library/not se promener=go for a walk
avoir LE temps/have time/lire LE journal=read the newspaper/se promener=go for a walk/faire LA cuisine=cook
+/faire @un gâteau=make a cake/jouer de LE piano=play the piano
il pleuvoir/rain/prendre POSS_M parapluie=take POSS umbrella/rester à LA maison=stay at home/not sortir=go out
+/prendre LE bus=take the bus/aller à LE musée=go to the museum/fermer LA fenêtre=close the window
il neiger/snow/mettre POSS_M manteau=put on POSS coat/rester à LA maison=stay at home
+/prendre LE train=take the train/aller à LA montagne=go to the mountains
il faire beau/be sunny/aller à LA plage=go to the beach/se promener=go for a walk
+/déjeuner dans LE jardin=have lunch in the garden/travailler dans LE jardin=work in the garden
+/prendre LE vélo=take the bike
il faire froid/be cold/mettre POSS_M manteau=put on POSS coat/rester à LA maison=stay at home
+/fermer LA porte=close the door/boire @du thé=drink @some tea
il faire chaud/be hot/ouvrir LA fenêtre=open the window/nager=swim/boire @dela eau=drink @some water
+/aller à LA piscine=go to the swimming pool/not mettre POSS_M manteau=put on POSS coat
""".replace("\n+", "")
    )
)


def lexicon_size() -> int:
    """Distinct French words and fixed expressions with their meanings."""
    entries = {noun.fr for nouns in NOUNS.values() for noun in nouns}
    entries |= {name for name, _ in NAMES}
    entries |= {adjective.fr for adjective in ADJECTIVES} | {fr for fr, _ in PERSON_ADJECTIVES}
    entries |= {
        f"{verb.fr} {verb.fr_rest}".strip()
        for verbs in (THINGS, PERSONS, DATIVES, ABOUT, GIVING, SIMPLE)
        for verb in verbs
    }
    entries |= {place.fr for place in PLACES + CITIES}
    for table in (
        *GENERIC.values(),
        FEELINGS,
        ROOMS,
        MANNERS,
        HABITUAL,
        NOW,
        FREQUENCY,
        PAST,
        FUTURE,
        MONTHS,
        DAYS,
    ):
        entries |= {pair[0] for pair in table}
    entries |= {position[0] for position in POSITIONS}
    return len(entries)
