"""Invertible de-tokenizers: natural text from tokenized benchmark files, and the line of the file from the text.

Section 3.1 of the GPT-2 paper scores WikiText, PTB and 1BW through invertible de-tokenizers that remove as many
artifacts of tokenization as possible. It lists no rules; these were chosen by reading the files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

Edit = Callable[[str], str]


class DetokenizedLine(NamedTuple):
    """A line of natural text and what is needed to invert it.

    `left_out` names the rules that this line cannot invert, in order. `bits` is the cost of stating them: 0 if all
    rules apply, else log2 of the R rules for their number, and log2 of the subsets of that size. Whether a line is an
    exception (one bit per line) is not included.
    """

    text: str
    left_out: tuple[str, ...]
    bits: float


class Rule(NamedTuple):
    """One artifact of a tokenizer: `join` removes it from a line, `split` restores it."""

    name: str
    join: Edit
    split: Edit


@dataclass(frozen=True)
class Detokenizer:
    """The rules of one tokenized format, joined in order and split in reverse order.

    `replacements` make a de-tokenizer lossy: they apply after the rules, and `retokenize` does not undo them.
    """

    rules: tuple[Rule, ...]
    replacements: Edit | None = None

    def detokenize(self, line: str) -> DetokenizedLine:
        """Return the natural text of a line of the file, with its outer spaces, with or without its line end.

        If a line does not survive the round trip, the first single rule without which it does is left out; else rules
        are added in order as long as it does. At worst the text is the line itself.
        """
        names = tuple(rule.name for rule in self.rules)
        for left_out in ((), *((name,) for name in names)):
            if (text := self._join(line, left_out)) is not None:
                break
        else:
            text, left_out = line, names
            for name in names:
                fewer = tuple(other for other in left_out if other != name)
                if (joined := self._join(line, fewer)) is not None:
                    text, left_out = joined, fewer
        bits = math.log2(len(names)) + math.log2(math.comb(len(names), len(left_out))) if left_out else 0.0
        return DetokenizedLine(text if self.replacements is None else self.replacements(text), left_out, bits)

    def retokenize(self, text: str, left_out: Collection[str]) -> str:
        """Return the line of the file from its text and the names of the rules that were left out."""
        for rule in reversed(self.rules):
            if rule.name not in left_out:
                text = rule.split(text)
        return text

    def _join(self, line: str, left_out: Collection[str]) -> str | None:
        """Return the text of a line, or None if these rules do not restore the line."""
        text = line
        for rule in self.rules:
            if rule.name not in left_out:
                text = rule.join(text)
        return text if self.retokenize(text, left_out) == line else None


def _substitute(*pairs: tuple[str, str]) -> Edit:
    compiled = [(re.compile(pattern), replacement) for pattern, replacement in pairs]

    def edit(text: str) -> str:
        for pattern, replacement in compiled:
            text = pattern.sub(replacement, text)
        return text

    return edit


def _swap(name: str, token: str, joined: str, before: str = "", after: str = "") -> Rule:
    """Return the rule that replaces `token` by `joined` between matches of two assertions."""
    join = before + re.escape(token) + after, joined
    split = before + re.escape(joined) + after, token.replace("\\", r"\\")
    return Rule(name, _substitute(join), _substitute(split))


def _isolate(characters: str) -> Edit:
    """Return an edit that puts a space on both sides of these characters if there is none yet."""
    return _substitute((rf"(?<=\S)(?=[{characters}])|(?<=[{characters}])(?=\S)", " "))


def _join_pairs(pattern: re.Pattern[str], text: str) -> str:
    """Attach quotes to the words inside: the first of a line opens, the second closes, and so on.

    A line with an odd number contains a part of a longer quotation: its first quote closes one if it follows a mark
    and precedes the end of the line or a lower-case word (`, " he said .`).
    """
    quotes = list(pattern.finditer(text))
    pieces, end, opens = [], 0, True
    if len(quotes) % 2:
        before, after = text[: quotes[0].start()], text[quotes[0].end() : quotes[0].end() + 1]
        opens = not (before.endswith((",", ".", "!", "?")) and (after.islower() or not after.strip()))
    for quote in quotes:
        pieces += [text[end : quote.start()], quote[0].rstrip(" ") if opens else quote[0].lstrip(" ")]
        opens, end = not opens, quote.end()
    return "".join(pieces) + text[end:]


def _join_even_pairs(pattern: re.Pattern[str], text: str) -> str:
    """Attach quotes in pairs, or none if their number is odd: one may be an apostrophe."""
    return text if len(pattern.findall(text)) % 2 else _join_pairs(pattern, text)


# A mark may follow a quote or another mark: `Knights ', and`, `5 %.`
_WORD_END = r"(?![^\s,.;:!?%])"


def _mark(name: str, marks: str) -> Rule:
    """Return the rule that attaches marks to the word before them: `word ,` becomes `word,`."""
    return _swap(name, " ", "", rf"(?<=[^\s{marks}])", rf"(?=[{marks}]{_WORD_END})")


def _period(unsplit: str, end: str) -> Rule:
    """Return the rule of the period that ends a sentence; words that match `unsplit` contain theirs.

    `U.S .` is not joined, because `U.S.` is not split.
    """
    join = rf"(?<!\S)(?!(?:{unsplit}) \.(?!\S))(\S*[^\s.]) \.{end}"
    split = rf"(?<!\S)(?!(?:{unsplit})\.(?!\S))(\S*[^\s.])\.{end}"
    return Rule("period", _substitute((join, r"\1.")), _substitute((split, r"\1 .")))


_DOTTED = r"(?:[^\W\d_]\.)+[^\W\d_]"
_ABBREVIATION = (
    rf"{_DOTTED}|[^\W\d_a-z]|St|Mr|Mrs|Ms|Dr|Prof|Rev|Sr|Jr|Bros|Co|Corp|Inc|Nos?|vs?|var|pp"
    r"|Lt|Col|Gen|Maj|Capt|Sgt|Cpl|Adm|Gov|Sen|Rep"
)
_LINE_PERIOD = _period(_DOTTED, r"""(?=(?: (?:"|''?|[)\]]|-R[RS]B-))*\s*\Z)""")

_AMOUNTS = _mark("percent", "%"), _swap("currency", " ", "", r"(?<=[$£€])", r"(?=\d|<|N\b)")
_MARKS = (
    *(_mark("comma", ","), _mark("semicolon", ";"), _mark("colon", ":")),
    *(_mark("exclamation", "!"), _mark("question", "?"), *_AMOUNTS),
)
# <unk> may replace a part of a number.
_NUMBER_BEFORE, _NUMBER_AFTER = r"(?<=[\d>])", r"(?=[\d<])"

# These words end in s, too, and may precede an opening quote.
_PLURAL = r"(?<=s)(?<!\b[ai]s)(?<!\b(?:wa|ha|hi|it)s)(?<!\bthis)"
_POSSESSIVE = _swap("possessive", " '", "'", _PLURAL, _WORD_END)

# The tokenizer of WikiText and 1BW splits at every apostrophe inside a word (don 't, O 'Neil), and at brackets.
_MOSES_WORDS = (
    _swap("apostrophe", " '", "'", r'(?<=[^\s"])', r"(?=\w)"),
    _swap("curly-apostrophe", " ’ ", "’", r"(?<=\S)", r"(?=(?:s|t|m|d|re|ve|ll)\b)"),
    _POSSESSIVE,
    Rule(
        "single-quote",
        partial(_join_even_pairs, re.compile(rf"(?:(?<=\S) )?(?<!\S)'{_WORD_END}(?: (?=\S))?")),
        _substitute((r"(?<!\S)'(?=\S)", "' "), (rf"(?<=\S)'{_WORD_END}", " '")),
    ),
    Rule("slash", _substitute((r"(?<=[\w>]) / (?=[\w<])", "/")), _isolate("/")),
)
_MOSES_PAIRS = (
    Rule("bracket", _substitute((r"(?<!\S)([(\[]) (?=\S)", r"\1"), (r"(?<=\S) ([)\]])", r"\1")), _isolate(r"()\[\]")),
    Rule("quote", partial(_join_pairs, re.compile(r'(?:(?<=\S) )?"(?: (?=\S))?')), _isolate('"')),
)

# PTB style splits off known endings, a few pairs of words, and escapes slashes.
_CLITICS = r"(?=(?i:'s|'m|'d|'re|'ve|'ll|n't)(?!\w))"
_WORD_PAIR = r"(?i)\b(can(?={0}not\b)|(?:gon|wan)(?={0}na\b)|got(?={0}ta\b)|(?:gim|lem)(?={0}me\b)){0}"
_PTB_WORDS = (
    _swap("clitic", " ", "", r"(?<=[\w.>])", _CLITICS),
    Rule("word-pair", _substitute((_WORD_PAIR.format(" "), r"\1")), _substitute((_WORD_PAIR.format(""), r"\1 "))),
    _swap("escaped-slash", r"\/", "/"),
)
# Words that begin with an apostrophe, which is not a quote.
_NO_ELISION = r"(?!(?i:em|tis|twas|twere|twill|twould|til|cause|t)\b)"

# The space at both ends of every line of WikiText and PTB; an empty line is one space.
_EDGES = Rule(
    "edges",
    _substitute((r"\A (?:(.+) )?(?=\n?\Z)", r"\1")),
    _substitute((r"\A(.+)(?=\n?\Z)", r" \1 "), (r"\A(?=\n?\Z)", " ")),
)

_WIKITEXT = (
    _period(_ABBREVIATION, _WORD_END),
    _swap("time", " : ", ":", r"(?<=\d)", r"(?=\d)"),
    *_MARKS,
    _mark("sign", "°′″♭♯"),
    _swap("number-comma", " @,@ ", ",", _NUMBER_BEFORE, _NUMBER_AFTER),
    _swap("number-point", " @.@ ", ".", _NUMBER_BEFORE, _NUMBER_AFTER),
    *_MOSES_WORDS,
    Rule(
        "dash",
        _substitute((r"(?<=\S) ([—‑]) (?=\S)", r"\1"), (r"(?<=\d) – (?=[\d<])|(?<=>) – (?=\d)", "–")),
        _isolate("–—‑"),
    ),
    *_MOSES_PAIRS,
    _swap("hyphen", " @-@ ", "-", r"(?<=\S)", r"(?=\S)"),
    _swap("heading", "= ", "=", after="(?==)"),
    _EDGES,
)

_PTB = (
    *_AMOUNTS,
    *_PTB_WORDS,
    _POSSESSIVE,
    _swap("pound", "# ", "£", after=r"(?=N\b)"),  # the Treebank writes # for the pound sign
    _EDGES,
)

_ONE_BILLION_WORDS = (
    _LINE_PERIOD,
    *_MARKS,
    *_MOSES_WORDS,
    _swap("url", ": / / ", "://", r"(?:(?<=http)|(?<=https))", r"(?=\S)"),
    *_MOSES_PAIRS,
)

_CBT = (
    _LINE_PERIOD,
    *_MARKS,
    *_PTB_WORDS,
    Rule(
        "single-quote",
        _substitute((rf"(?<!\S)` {_NO_ELISION}(?=[^\s'])", "'"), (rf"(?<=[^\s']) '{_WORD_END}", "'")),
        _substitute((rf"(?<!\S)'{_NO_ELISION}(?=[^\s'])", "` "), (rf"(?<=[^\s'])'{_WORD_END}", " '")),
    ),
    Rule(
        "quote",
        _substitute((r"(?<!\S)`` (?=\S)", '"'), (rf"(?<=\S) ''{_WORD_END}", '"')),
        _substitute((r'(?<!\S)"(?=\S)', "`` "), (r'(?<=\S)"', " ''")),
    ),
    *(
        Rule(
            name,
            _substitute((rf"(?<!\S)-L{code}B- (?=\S)", opening), (rf"(?<=\S) -R{code}B-", closing)),
            _substitute((rf"\{opening}(?=\S)", f"-L{code}B- "), (rf"(?<=\S)\{closing}", f" -R{code}B-")),
        )
        for name, code, opening, closing in (("bracket", "R", "(", ")"), ("square-bracket", "S", "[", "]"))
    ),
    Rule(
        "dash",
        _substitute((r"(?<=\S) --(?!-)", "--"), (r"(?<=[^\s-]--) (?=\S)", "")),
        _substitute((r"(?<=[^\s-])(?=--(?!-))", " "), (r'(?<= --)(?=[^\s"-]|"\w)', " ")),
    ),
)

# The lossy variants replace unknown words and numbers as the widely copied de-tokenizers do.
DETOKENIZERS: Mapping[str, Detokenizer] = {
    "none": Detokenizer(()),
    "wikitext": Detokenizer(_WIKITEXT),
    "ptb": Detokenizer(_PTB),
    "1bw": Detokenizer(_ONE_BILLION_WORDS),
    "cbt": Detokenizer(_CBT),
    "wikitext-lossy": Detokenizer(_WIKITEXT, _substitute((r"<unk>", "?"))),
    "ptb-lossy": Detokenizer(_PTB, _substitute((r"<unk>", "?"), (r"\bN\b", "1"))),
}
