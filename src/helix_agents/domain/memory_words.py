"""The words by which a memory is found, the same on every store: folded, without words that carry no meaning."""

import re
import unicodedata

# Scripts without blanks between words: Thai, Lao, Burmese, Khmer, kana, Han and their extensions.
_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0003ffff]+"
)
# Marks that many writers leave out: accents, and the points of Hebrew and Arabic; and marks that say how a sign looks.
# Marks of other scripts are vowels, and without them a word is a different word.
_LEFT_OUT = re.compile(
    r"[\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed"
    r"\u180b-\u180f\u20d0-\u20ff\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
_LONGEST = 64


class _Parted(dict[int, str]):
    """What each character becomes: letters, digits and the marks on them stay, and all others become a blank."""

    def __missing__(self, code: int) -> str:
        sign = chr(code)
        self[code] = sign if unicodedata.category(sign)[0] in "LNM" else " "
        return self[code]


_PARTED = _Parted()

# Words that occur in any sentence. A memory that shares only these with a query is unrelated to it.
_WORDS_THAT_SAY_NOTHING = """
a about after again all also am an and any anything are as at be because been before being but by can could did do
does doing don down else ever for from get give go going good had has have having hello help her here hers hi him
his how i if in into is it its just know let like ll m make may me might mine more most much must my need no not now
of off ok on one only or other our ours out over own please re remember s say shall she should show so some
something such t tell than thank thanks that the their theirs them then there these they thing think this those to
too up us ve very want was we well were what when where which who whom why will with would yes you your yours aber
als auch auf aus bei bin bist bitte da das dass dein deine dem den der des die doch du ein eine einem einen einer er
es fur habe haben hast hat ich ihr im ist ja kann kein keine kannst man mein meine meinem meinen mich mir mit nach
nicht noch nur oder sein sich sie sind und uns unser von war wenn wer wie wir wo zu zum zur ai au aux avec ce cela
ces cette dans de elle en est et il ils je la le les leur lui ma mais mes moi mon ne nous ou pas pour que quel
quelle qui sa se ses son sont sur ta te tes toi ton tu un une vous al como con cual cuando del donde el ella entre
era eres esta este esto las lo los mas mi mis muy nos o para pero por quien si sin sobre soy su sus tengo tiene tus
una y yo
"""
_SAYS_NOTHING = frozenset(_WORDS_THAT_SAY_NOTHING.split())


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text, each once, in order."""
    plain = unicodedata.normalize("NFC", _LEFT_OUT.sub("", unicodedata.normalize("NFKD", text.casefold())))
    found: dict[str, None] = {}
    for run in plain.translate(_PARTED).split():
        for word in _parts(run):
            if word not in _SAYS_NOTHING:
                found[_stem(word)[:_LONGEST]] = None
    return tuple(found)


def _parts(run: str) -> list[str]:
    """The words in a run without blanks; in scripts without blanks between words, every pair of adjacent characters."""
    parts: list[str] = []
    at = 0
    for unspaced in _UNSPACED.finditer(run):
        if at < unspaced.start():
            parts.append(run[at : unspaced.start()])
        signs = unspaced.group()
        parts.extend(signs[n : n + 2] for n in range(max(1, len(signs) - 1)))
        at = unspaced.end()
    if at < len(run):
        parts.append(run[at:])
    return parts


def _stem(word: str) -> str:
    """Treats "cat" and "cats" as the same word."""
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    if len(word) > 3 and word[-1] == "s" and word[-2] not in "su":
        return word[:-1]
    return word
