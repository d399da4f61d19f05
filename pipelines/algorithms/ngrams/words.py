"""The definition of words and n-grams in the overlap audit and in dedup.

The paper (section 4) speaks of "lower-cased alphanumeric words with a single space as a delimiter" and leaves the rest
open. Here a text is lower-cased as a whole (`str.lower`), and a word is a maximal run of Unicode letters or digits
(`str.isalnum`). Any other character, including an apostrophe or a combining mark, ends a word. `Normalization` has the
other interpretations.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from typing import ClassVar, Literal


@dataclasses.dataclass(frozen=True)
class Normalization:
    """What the paper leaves open about words and n-grams; reports use the defaults unless options change them.

    `apostrophes`: "split" ends a word at an apostrophe (U+0027, U+2019) as at any other sign; "drop" removes it
    between two word characters (don't becomes dont). `letters`: "unicode" has the letters and
    digits of all scripts, "ascii" only a-z and 0-9 of the lower-cased text. `lines`: "cross" lets an n-gram
    span lines, "stop" does not (a line ends at each "\\n" or "\\r").
    """

    apostrophes: Literal["split", "drop"] = "split"
    letters: Literal["unicode", "ascii"] = "unicode"
    lines: Literal["cross", "stop"] = "cross"
    # No field: files of the audit list the fields, and the audit has no such option.
    is_shingling: ClassVar[bool] = False


class Shingling(Normalization):
    """The words and n-grams of dedup, which compares short texts and texts of all scripts.

    Each letter or digit of a script without spaces between words (`is_unspaced`) is a word of its own. A text with at
    least one word and fewer than `n` is one n-gram, unless n-grams stop at lines.
    """

    is_shingling: ClassVar[bool] = True


DEFAULT = Normalization()


def describe(normalization: Normalization) -> str:
    """Describe a normalization in one line for reports."""
    letters = {"unicode": "Unicode", "ascii": "a-z and 0-9 only"}[normalization.letters]
    apostrophes = {"split": "", "drop": ", apostrophes within words left out"}[normalization.apostrophes]
    lines = {"cross": "", "stop": ", n-grams end where lines end"}[normalization.lines]
    return f"lower-cased alphanumeric words ({letters}), one space between words{apostrophes}{lines}"


# Words in the Unicode names of characters of scripts that are written without spaces: Chinese, Japanese, Thai, Lao,
# Khmer, Burmese, Tibetan.
_UNSPACED = frozenset(
    "CJK IDEOGRAPH IDEOGRAPHIC HANGZHOU HIRAGANA KATAKANA KANA THAI LAO KHMER MYANMAR TIBETAN".split()
)
_FIRST_UNSPACED = 0xE00


def is_unspaced(character: str) -> bool:
    """Return whether a character is a letter or digit of a script that has no spaces between words."""
    if ord(character) < _FIRST_UNSPACED or not character.isalnum():
        return False
    return not _UNSPACED.isdisjoint(unicodedata.name(character, "").replace("-", " ").split())
