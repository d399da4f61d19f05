"""The official forms of benchmark files, and the texts of their examples."""

from __future__ import annotations

import functools
import html
import itertools
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from pipelines import storage
from pipelines.errors import InputError
from pipelines.evaluation.detokenizers import Detokenizer
from pipelines.evaluation.records import Record, is_text, read_lines, read_records
from pipelines.storage.bounded import stream_lines
from pipelines.storage.compression import open_decompressed, strip_compression

_LETTERS = re.compile(r"\(?([A-Za-z])[.)]?$")
_BLANK = "XXXXX"
_CBT_CONTEXT = 20
_POSSESSIVES = {"his", "her", "its", "their", "my", "your", "our"}
# A candidate that begins with one of these is lower-cased within a sentence.
_LOWERED = ("The", "A", "An", "My", "His", "Her", "Their", "Our", "Your", "Its", "This", "That", "Some")

# Removed before the language is read from the end of a name; files without it have a sentence per line.
_TEXT_SUFFIX = re.compile(r"\.(sgml?|xml)$", re.IGNORECASE)
_SGML = re.compile(r'<doc\s[^>]*docid="(?P<document>[^"]*)"|<seg\b[^>]*>(?P<text>.*?)</seg>', re.IGNORECASE | re.DOTALL)
_CLASS_COLUMNS = ("class index", "title", "description")
_TREC_LABELS = ("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM")


class Question(NamedTuple):
    """A text with a gap for one of several choices, the index of the right one (`gold`), and a cluster of related ones.

    `names` are the choices as reported; `fallbacks` counts lines that not all rules of a de-tokenizer can invert.
    """

    prompt: str
    choices: Sequence[str]
    names: Sequence[str]
    rest: str
    gold: int
    cluster: str
    place: str
    fallbacks: int = 0


class Layout(NamedTuple):
    """How a file is read, and how its records become questions if the options of the task do not define that."""

    read: Callable[[Sequence[str]], Iterator[Record]]
    question: Callable[[Record, Detokenizer], Question] | None = None


def _read_cbt(paths: Sequence[str]) -> Iterator[Record]:
    """Yield the questions of the Children's Book Test, as records or in its own form.

    A question has 20 numbered sentences, then `21 QUESTION<tab>ANSWER<tab><tab>CANDIDATE|CANDIDATE...`.
    """
    for path in paths:
        if not is_text(path):
            yield from read_records([path])
            continue
        sentences: list[str] = []
        for number, line in read_lines(path):
            label, _, content = line.strip("\r\n").partition(" ")
            if not label:
                continue
            expected = len(sentences) + 1
            if label != str(expected):
                raise InputError(
                    f"{path}:{number}: begins with {label!r}, expected the sentence {expected} of a question"
                )
            if expected <= _CBT_CONTEXT:
                sentences.append(content)
                continue
            parts = content.split("\t")
            if len(parts) != 4 or _BLANK not in parts[0]:
                raise InputError(f"{path}:{number}: expected a question with {_BLANK}, its answer and its candidates")
            fields = {"sentences": sentences, "question": parts[0], "answer": parts[1], "options": parts[3].split("|")}
            yield Record(fields, f"{storage.basename(path)}:{number}")
            sentences = []
        if sentences:
            raise InputError(f"{path}: ends after {len(sentences)} sentences of a question, expected 21")


def _cbt_question(record: Record, detokenizer: Detokenizer) -> Question:
    """Return a question; the candidate and the rest of its sentence are scored after the text before them."""
    context = [detokenizer.detokenize(sentence) for sentence in record.texts("sentences")]
    sentence, options, answer = record.value("question"), record.texts("options"), record.value("answer")
    if _BLANK not in sentence:
        raise InputError(f"{record.place}: the question has no {_BLANK}")
    if answer not in options:
        raise InputError(f"{record.place}: the answer {answer!r} is not one of the candidates {options}")
    start = detokenizer.detokenize(sentence[: sentence.index(_BLANK)].strip()).text
    lines = [detokenizer.detokenize(sentence.replace(_BLANK, option, 1)) for option in options]
    whole, gold = [line.text for line in lines], options.index(answer)
    # If a candidate changes the text before it, such as the space after a quote, the whole sentence is scored.
    start = start if all(text.startswith(start) for text in whole) else ""
    choices = [text[len(start) :] for text in whole]
    prompt = " ".join([*(line.text.strip() for line in context), start])
    fallbacks = sum(bool(line.left_out) for line in (*context, lines[gold]))
    return Question(prompt, choices, options, "", gold, record.place, record.place, fallbacks)


def _read_winograd(paths: Sequence[str]) -> Iterator[Record]:
    """Yield the schemas of the Winograd Schema Challenge, as records or in the XML form of its authors.

    Two schemas in a row with the same options are a pair, whose number is in the field `pair`.
    """
    previous: list[str] | None = None
    pair = -1
    for path in paths:
        is_xml = storage.basename(path).lower().endswith(".xml")
        for record in _winograd_xml(path) if is_xml else _joined_substitutions(read_records([path])):
            options = sorted(option.lower() for option in record.texts("options"))
            is_second = options == previous
            pair += not is_second
            previous = None if is_second else options
            yield Record({**record.fields, "pair": pair}, record.place)


def _joined_substitutions(records: Iterator[Record]) -> Iterator[Record]:
    """Yield schemas; in the file of Trinh and Le, they have a record per candidate, which are joined.

    Its fields are `question_id`, `substitution` and `correctness`. The candidates are the words in which the sentences
    differ.
    """
    for number, group in itertools.groupby(records, lambda record: record.fields.get("question_id")):
        first, *others = group
        if "substitution" not in first.fields:
            yield from (first, *others)
            continue
        sentences = [str(record.value("substitution")).split() for record in (first, *others)]
        correct = [bool(record.value("correctness")) for record in (first, *others)]
        if correct.count(True) != 1 or len(correct) < 2:
            raise InputError(f"{first.place}: question {number} needs at least two sentences, one of them correct")
        same_start = _common_words(sentences)
        same_end = _common_words([words[same_start + 1 :][::-1] for words in sentences])
        options = [" ".join(words[same_start : len(words) - same_end]) for words in sentences]
        before = "".join(f"{word} " for word in sentences[0][:same_start])
        fields = {"text": " ".join(sentences[0]), "pronoun": options[0], "pronoun_loc": len(before)}
        yield Record({**fields, "options": options, "label": correct.index(True)}, first.place)


def _common_words(sentences: Sequence[Sequence[str]]) -> int:
    columns = zip(*sentences, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda words: len(set(words)) == 1, columns))


def _winograd_xml(path: str) -> Iterator[Record]:
    with open_decompressed(path) as stream:
        try:
            schemas = list(ElementTree.parse(stream).getroot().iter("schema"))
        except ElementTree.ParseError as error:
            raise InputError(f"{path}: is not valid XML ({error})") from error
    for number, schema in enumerate(schemas, 1):
        place = f"{storage.basename(path)}:{number}"
        parts = [schema.findtext(f"text/{name}") for name in ("txt1", "pron", "txt2")]
        answers = [element.text or "" for element in schema.iter("answer")]
        label = (schema.findtext("correctAnswer") or "").strip(" .\n").upper()
        if None in parts or len(answers) < 2 or label not in ("A", "B"):
            raise InputError(f"{place}: is not a schema with a text, a pronoun, two answers and the correct one")
        before, pronoun, after = (" ".join(part.split()) for part in parts if part is not None)
        fields: dict[str, Any] = {"text": f"{before} {pronoun} {after}".strip(), "pronoun": pronoun}
        fields |= {"pronoun_loc": len(before) + bool(before), "options": [" ".join(text.split()) for text in answers]}
        yield Record(fields | {"label": "AB".index(label)}, place)


def _winograd_question(record: Record, _detokenizer: Detokenizer) -> Question:
    """Return a schema with its candidates in place of the pronoun."""
    text, pronoun, location = record.value("text"), record.value("pronoun"), str(record.value("pronoun_loc"))
    if not location.isdecimal() or not text.startswith(pronoun, place := int(location)):
        raise InputError(f"{record.place}: the pronoun {pronoun!r} is not at character {location} of the text")
    before, rest = text[:place], re.sub(r"^ (?=['.,;:!?])", "", text[place + len(pronoun) :])
    starts_sentence = not before.strip() or before.rstrip()[-1] in ".!?\"'"
    choices = []
    for option in record.texts("options"):
        first, space, others = option.partition(" ")
        choice = option if starts_sentence or first not in _LOWERED else first.lower() + space + others
        if pronoun.lower() in _POSSESSIVES and not choice.endswith("'s"):
            choice += "'s"
        choices.append(choice)
    gold = gold_number(record.value("label"), choices, record.place)
    return Question(before, choices, choices, rest, gold, str(record.value("pair")), record.place)


def _read_pairs(paths: Sequence[str]) -> Iterator[Record]:
    """Yield pairs of sentences as `translation.LANGUAGE`, of records or of two files, one per language.

    A file has a sentence per line, or is WMT's SGML; its name ends in its language, `src.fr.sgm` or `test.fr`. A pair's
    `document` is that of the SGML, else its place.
    """
    if not all(map(is_text, paths)):
        for record in read_records(paths):
            yield Record({"document": record.place, **record.fields}, record.place)
        return
    languages = [_TEXT_SUFFIX.sub("", strip_compression(path)).rpartition(".")[2] for path in paths]
    if len(set(languages)) != 2 or len(paths) != 2:
        names = ", ".join(map(storage.basename, paths))
        raise InputError(f"{names}: expected two files whose names end in their language, such as test.fr,test.en")
    sides = [list(_sentences(path)) for path in paths]
    if len(sides[0]) != len(sides[1]):
        counts = " and ".join(f"{len(side):,}" for side in sides)
        raise InputError(f"{paths[0]}: is not as long as {storage.basename(paths[1])} ({counts} sentences)")
    for number, pair in enumerate(zip(*sides, strict=True), 1):
        place = f"{storage.basename(paths[0])}:{number}"
        translation = dict(zip(languages, (text for _, text in pair), strict=True))
        yield Record({"document": pair[0][0] or place, "translation": translation}, place)


def _sentences(path: str) -> Iterator[tuple[str, str]]:
    """Yield the document ("" if the file names none) and the text of every sentence."""
    lines = (line for _, line in read_lines(path))
    if not _TEXT_SUFFIX.search(strip_compression(path)):
        yield from (("", line.strip()) for line in lines)
        return
    document = ""
    for tag in _SGML.finditer("".join(lines)):
        document = tag["document"] or document
        if tag["text"] is not None:
            yield document, " ".join(html.unescape(tag["text"]).split())


def _read_classes(paths: Sequence[str]) -> Iterator[Record]:
    """Yield texts with a `label` from 0, of records or of CSV files with the class from 1, a title and a text."""
    for record in read_records(paths, _CLASS_COLUMNS):
        if _CLASS_COLUMNS[0] not in record.fields:
            yield record
            continue
        number, title, content = (str(record.value(name)) for name in _CLASS_COLUMNS)
        if not number.isdecimal():
            raise InputError(f"{record.place}: the class {number!r} is not a number")
        fields = {"label": int(number) - 1, "title": title, "content": content, "text": f"{title} {content}"}
        yield Record(fields, record.place)


def _read_trec(paths: Sequence[str]) -> Iterator[Record]:
    """Yield questions with the number of their coarse label, of records or of lines `NUM:dist How far ...`."""
    for path in paths:
        if not is_text(path):
            for record in read_records([path]):
                fields = {"label": record.fields["coarse_label"]} if "coarse_label" in record.fields else {}
                yield Record({**fields, **record.fields}, record.place)
            continue
        with open_decompressed(path) as stream:
            for number, line in enumerate(stream_lines(stream), 1):
                if not line.strip():
                    continue
                # In the training file, one byte that is not ASCII stands for a space.
                label, _, text = line.replace(b"\xf0", b" ").decode("latin-1").strip().partition(" ")
                place, coarse = f"{storage.basename(path)}:{number}", label.partition(":")[0]
                if coarse not in _TREC_LABELS:
                    raise InputError(f"{place}: begins with {label!r}, expected a label such as NUM:dist")
                yield Record({"label": _TREC_LABELS.index(coarse), "text": text}, place)


def gold_number(gold: Any, choices: Sequence[str], place: str, first: int = 0) -> int:
    """Return the index of the right choice, given as a number from `first`, a letter or a text.

    Raises InputError for anything else.
    """
    number = None
    texts = [choice.strip() for choice in choices]
    if isinstance(gold, str) and gold.strip() in texts:
        number = texts.index(gold.strip())
    elif isinstance(gold, int) or (isinstance(gold, str) and gold.isdecimal()):
        number = int(gold) - first
    elif isinstance(gold, str) and (letter := _LETTERS.match(gold.strip())):
        number = ord(letter[1].upper()) - ord("A")
    if number is None or not 0 <= number < len(choices):
        raise InputError(f"{place}: the right choice {gold!r} is not one of {texts}")
    return number


# How files are read; only tasks of choices use the questions of a layout.
LAYOUTS = {
    "records": Layout(read_records),
    "coqa": Layout(read_records),
    "pairs": Layout(_read_pairs),
    "cola": Layout(functools.partial(read_records, columns=("source", "label", "mark", "sentence"))),
    "classes": Layout(_read_classes),
    "trec": Layout(_read_trec),
    "cbt": Layout(_read_cbt, _cbt_question),
    "winograd": Layout(_read_winograd, _winograd_question),
}
