"""The official forms of benchmark files, and the texts of their examples."""

from __future__ import annotations

import functools
import html
import itertools
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pipelines import storage
from pipelines.errors import InputError
from pipelines.evaluation.detokenizers import Detokenizer
from pipelines.evaluation.records import Record, is_text, read_lines, read_records
from pipelines.records import reader
from pipelines.storage.compression import open_decompressed, strip_compression

_NO_LABELS = "test sets are often published without labels: name the validation set"
_NUMBER = re.compile(r"\d{1,9}")
_LETTERS = re.compile(r"\(?([A-Za-z])[.)]?$")
_BLANK = "XXXXX"
_POSSESSIVES = {"his", "her", "its", "their", "my", "your", "our"}
# A candidate that begins with one of these is lower-cased within a sentence.
_LOWERED = ("The", "A", "An", "My", "His", "Her", "Their", "Our", "Your", "Its", "This", "That", "Some")

# Removed before the language is read from the end of a name; files without it have a sentence per line.
_TEXT_SUFFIX = re.compile(r"\.(sgml?|xml)$", re.IGNORECASE)
_SGML = re.compile(r'<doc\s[^>]*docid="(?P<document>[^"]*)"|<seg\b[^>]*>(?P<text>.*?)</seg>', re.IGNORECASE | re.DOTALL)
_CLASS_COLUMNS = ("class index", "title", "description")
_TREC_LABELS = ("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM")
# The labels of RTE and CommitmentBank, numbered as on the hub; and the names of fields in TREC and GLUE.
_ENTAILMENT_LABELS = {"entailment": 0, "not_entailment": 1, "contradiction": 1, "neutral": 2}
_USUAL_NAMES = {"coarse_label": "label", "sentence1": "premise", "sentence2": "hypothesis"}
# MMLU's CSV files have no header; no name may equal a cell of the first row, such as the letter of the right choice.
_MMLU_COLUMNS = ("question", "choice_1", "choice_2", "choice_3", "choice_4", "answer")
# Marks in the part of HellaSwag that is from WikiHow.
_WIKIHOW_MARK = re.compile(r"\[.*?\]")


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


def _read_cbt(paths: Sequence[str]) -> Iterator[Record]:
    """Yield the questions of the Children's Book Test, as records or in its own form.

    A question has 20 numbered sentences, then `21 QUESTION<tab>ANSWER<tab><tab>CANDIDATE|CANDIDATE...`.
    """
    for path in paths:
        if not is_text(path):
            yield from read_records([path])
        sentences: list[str] = []
        for number, line in read_lines(path) if is_text(path) else ():
            label, _, sentence = line.strip().partition(" ")
            parts, expected = sentence.split("\t"), f"{len(sentences) + 1}"
            if label and (label != expected or (label == "21" and len(parts) != 4)):
                form = "21 QUESTION<tab>ANSWER<tab><tab>CANDIDATES" if expected == "21" else f"{expected} SENTENCE"
                raise InputError(f"{path}:{number}: expected {form}, found {line.strip()[:40]!r}")
            sentences += [sentence] if label else []
            if label == "21":
                fields = {"sentences": sentences[:-1], "question": parts[0], "answer": parts[1]}
                yield Record({**fields, "options": parts[3].split("|")}, f"{storage.basename(path)}:{number}")
                sentences = []
        if sentences:
            raise InputError(f"{path}: ends after line {len(sentences)} of the 21 of a question")


def _cbt_question(record: Record, detokenizer: Detokenizer) -> Question:
    """Return a question; the candidate and the rest of its sentence are scored after the text before them."""
    context = [detokenizer.detokenize(sentence) for sentence in record.texts("sentences")]
    sentence, options = str(record.value("question")), record.texts("options")
    if _BLANK not in sentence:
        raise InputError(f"{record.place}: the question has no {_BLANK}")
    start = detokenizer.detokenize(sentence[: sentence.index(_BLANK)].strip()).text
    lines = [detokenizer.detokenize(sentence.replace(_BLANK, option, 1)) for option in options]
    whole, gold = [line.text for line in lines], gold_number(record, "answer", options)
    # If a candidate changes the text before it, such as the space after a quote, the whole sentence is scored.
    start = start if all(text.startswith(start) for text in whole) else ""
    choices = [text[len(start) :] for text in whole]
    prompt = " ".join([*(line.text.strip() for line in context), start])
    fallbacks = sum(bool(line.left_out) for line in (*context, lines[gold]))
    return Question(prompt, choices, options, "", gold, record.place, record.place, fallbacks)


def _read_winograd(paths: Sequence[str]) -> Iterator[Record]:
    """Yield the schemas of the Winograd Schema Challenge, as records, as a text or in the XML form of its authors.

    Two schemas in a row can be a pair (see `_are_pair`), whose number is the field `pair` unless all records have it.
    """
    records: list[Record] = []
    for path in paths:
        if storage.basename(path).lower().endswith(".xml"):
            records += _winograd_xml(path)
        else:
            records += _winograd_text(path) if is_text(path) else _joined_substitutions(read_records([path]))
    previous, pair = None, -1
    has_pairs = all(record.fields.get("pair") is not None for record in records)
    for record in records:
        is_second = previous is not None and _are_pair(previous, record)
        pair += not is_second
        previous = None if is_second else record
        yield record if has_pairs else Record({**record.fields, "pair": pair}, record.place)


def _are_pair(*schemas: Record) -> bool:
    """Return whether two schemas have different right answers, and texts with enough words in common.

    That is a third of their words if the options are the same, else two thirds: two pairs of the 273 change an option.
    """
    first, second = (Counter(str(schema.value("text")).split()) for schema in schemas)
    options = [[option.lower() for option in schema.texts("options")] for schema in schemas]
    golds = [gold_number(schema, "label", schema.texts("options")) for schema in schemas]
    least = max(first.total(), second.total()) * (1 if set(options[0]) == set(options[1]) else 2) / 3
    return options[0][golds[0]] != options[1][golds[1]] and (first & second).total() >= least


def _joined_substitutions(records: Iterator[Record]) -> Iterator[Record]:
    """Yield schemas; those of Trinh and Le have a record per candidate, the words in which the sentences differ.

    The fields are `question_id`, `substitution` and `correctness`.
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
        words = sentences[0]
        parts = " ".join(words[:same_start]), options[0], " ".join(words[len(words) - same_end :])
        yield _schema(parts, options, options[correct.index(True)], first.place)


def _common_words(sentences: Sequence[Sequence[str]]) -> int:
    columns = zip(*sentences, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda words: len(set(words)) == 1, columns))


def _winograd_xml(path: str) -> Iterator[Record]:
    with open_decompressed(path) as stream:
        try:
            schemas = list(ElementTree.parse(stream).getroot().iter("schema"))
        except (ElementTree.ParseError, LookupError, ValueError) as error:  # the last two: an unknown encoding
            raise InputError(f"{path}: is not valid XML ({error})") from error
    for number, schema in enumerate(schemas, 1):
        place = f"{storage.basename(path)}:{number}"
        parts = [schema.findtext(f"text/{name}", "") for name in ("txt1", "pron", "txt2")]
        answers = [element.text or "" for element in schema.iter("answer")]
        if not parts[1].strip() or len(answers) < 2:
            raise InputError(f"{place}: is not a schema with a text, a pronoun, two answers and the correct one")
        yield _schema(parts, answers, schema.findtext("correctAnswer", ""), place)


def _winograd_text(path: str) -> Iterator[Record]:
    """Yield schemas of four lines: a sentence, a pronoun whose first occurrence counts, candidates, the right one."""
    for is_blank, block in itertools.groupby(read_lines(path), lambda line: not line[1].strip()):
        (first, *_), (sentence, *others) = zip(*((number, line.strip()) for number, line in block), strict=True)
        if is_blank:
            continue
        parts = re.split(rf"(?<!\w)({re.escape(others[0])})(?!\w)", sentence, maxsplit=1) if len(others) == 3 else []
        if not parts[1:]:
            form = "a sentence, a pronoun in it, candidates separated by commas, the right one, and a blank line"
            raise InputError(f"{path}:{first}: expected {form}; or name records (.json, .jsonl, .parquet) or .xml")
        yield _schema(parts, others[1].split(","), others[2], f"{storage.basename(path)}:{first}")


def _schema(parts: Sequence[str], options: Sequence[str], label: str, place: str) -> Record:
    """Return the record of a schema; `parts` are the text before the pronoun, the pronoun, and the text after it."""
    before, pronoun, after, label, *options = (" ".join(part.split()) for part in (*parts, label, *options))
    fields = {"text": f"{before} {pronoun} {after}".strip(), "pronoun": pronoun, "options": options, "label": label}
    return Record({**fields, "pronoun_loc": len(before) + bool(before)}, place)


def _winograd_question(record: Record, _detokenizer: Detokenizer) -> Question:
    """Return a schema with its candidates in place of the pronoun."""
    text, pronoun, location = (str(record.value(name)) for name in ("text", "pronoun", "pronoun_loc"))
    if not _NUMBER.fullmatch(location) or not text.startswith(pronoun, place := int(location)):
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
    gold = gold_number(record, "label", record.texts("options"))
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


def _read_classes(
    paths: Sequence[str], labels: Sequence[str] = tuple("0123456789"), columns: Sequence[str] = _CLASS_COLUMNS
) -> Iterator[Record]:
    """Yield texts, without white space around them, with a `label` from 0.

    They are records, CSV files with the class from 1, a title and a text, or lines `1 fine .` and `NUM:dist How far ?`.
    """
    for record in _labeled_lines(paths, labels) if all(map(is_text, paths)) else read_records(paths, columns):
        fields = {name: part.strip() if isinstance(part, str) else part for name, part in record.fields.items()}
        fields = {_USUAL_NAMES[name]: part for name, part in fields.items() if name in _USUAL_NAMES} | fields
        if "label" in fields:
            fields["label"] = _ENTAILMENT_LABELS.get(str(fields["label"]), fields["label"])
        if _CLASS_COLUMNS[0] in fields:
            number, title, content = (str(record.value(name)).strip() for name in _CLASS_COLUMNS)
            label = int(number) - 1 if _NUMBER.fullmatch(number) else number
            fields = {"label": label, "title": title, "content": content, "text": f"{title} {content}"}
        yield Record(fields, record.place)


def _labeled_lines(paths: Sequence[str], labels: Sequence[str]) -> Iterator[Record]:
    """Yield the lines of texts as `text` and `sentence`; they begin with one of the labels, up to a colon or space."""
    for path in paths:
        for number, line, content in reader.read_records(path, "text"):
            # In TREC's training file, one byte that is not ASCII stands for a space.
            decoded = content.replace(b"\xf0", b" ").decode("latin-1") if isinstance(line, reader.BadRecord) else line
            place, (label, _, text) = f"{storage.basename(path)}:{number}", decoded.strip().partition(" ")
            if (coarse := label.partition(":")[0]) not in labels:
                expected = f"a label ({', '.join(labels)}) and a text; or name records (.jsonl, .csv, .tsv, .parquet)"
                raise InputError(f"{place}: begins with {label!r}, expected {expected}")
            yield Record({"label": labels.index(coarse), "text": text, "sentence": text}, place)


def _read_questions(paths: Sequence[str]) -> Iterator[Record]:
    """Yield questions, their texts as `choices`, and `answerKey`, `answer` or `label`, in the forms of their authors.

    Those of ARC, OpenBookQA, CommonsenseQA (`question` has a stem and labeled choices), MMLU (a CSV file per subject),
    PIQA and SIQA (a file `.lst` with a label per line); and those of the hub. `stem` is the question as it is,
    `question` without white space around it.
    """
    for record in _labeled_records(paths):
        fields, choices, key = dict(record.fields), record.fields.get("choices"), "answerKey"
        if isinstance(question := fields.get("question"), Mapping):
            fields |= question
            choices = fields.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
            parts = [Record(choice, record.place) for choice in choices]
            choices = {name: [part.value(name) for part in parts] for name in ("text", "label")}
        if _MMLU_COLUMNS[1] in fields:
            choices, key = {"text": [fields[name] for name in _MMLU_COLUMNS[1:-1]], "label": list("ABCD")}, "answer"
            name = storage.basename(record.place).partition(".")[0]
            fields["subject"] = re.sub(r"_(test|val|dev)$", "", name)  # world_history_test.csv
        if isinstance(choices, Mapping):
            whole = Record({**fields, "choices": choices}, record.place)
            # Some labels of ARC are letters, others digits from 1.
            gold = gold_number(whole, key, whole.texts("choices.label"), first=1)
            fields |= {"choices": whole.texts("choices.text"), key: gold}
        stem = next((fields[name] for name in ("stem", "question_stem", "question") if name in fields), None)
        if isinstance(stem, str):
            fields |= {"stem": stem, "question": stem.strip()}
        if "subject" in fields:
            fields["subject"] = str(fields["subject"]).replace("_", " ")
        yield Record(fields, record.place)


def _labeled_records(paths: Sequence[str]) -> Iterator[Record]:
    """Yield records, with the lines of `.lst` files, if there are any, as their `label`."""
    label_paths = [path for path in paths if strip_compression(path).endswith(".lst")]
    records = read_records([path for path in paths if path not in label_paths], _MMLU_COLUMNS)
    labels = (line.strip() for path in label_paths for _, line in read_lines(path) if line.strip())
    for record, label in itertools.zip_longest(records, labels):
        if label_paths and (record is None or label is None):
            raise InputError(f"{label_paths[0]}: has {'more' if record is None else 'fewer'} labels than records")
        if not label_paths and not {"label", "answerKey", "answer"} & record.fields.keys():
            remedy = f"name the file of labels after a comma (dev.jsonl,dev-labels.lst); {_NO_LABELS}"
            raise InputError(f"{record.place}: has no label, answerKey or answer; {remedy}")
        yield Record({**record.fields, "label": label}, record.place) if label_paths else record


def _read_hellaswag(paths: Sequence[str]) -> Iterator[Record]:
    """Yield HellaSwag's contexts, as `context`, and endings without the marks of WikiHow, like lm-evaluation-harness.

    The second part of a context begins with a capital, and continues in lower case.
    """
    for record in read_records(paths):
        second = str(record.fields.get("ctx_b") or "").capitalize()
        context = f"{record.value('activity_label')}: {record.value('ctx_a')} {second}"
        endings = [_without_marks(ending) for ending in record.texts("endings")]
        yield Record({**record.fields, "context": _without_marks(context), "endings": endings}, record.place)


def _without_marks(text: str) -> str:
    return _WIKIHOW_MARK.sub("", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def _read_winogrande(paths: Sequence[str]) -> Iterator[Record]:
    """Yield WinoGrande's sentences in two parts, `before` and `after` the gap."""
    for record in read_records(paths):
        before, gap, after = str(record.value("sentence")).partition("_")
        if not gap:
            raise InputError(f"{record.place}: the sentence has no _")
        yield Record({**record.fields, "before": before, "after": after.strip()}, record.place)


def gold_number(record: Record, field: str, choices: Sequence[str], first: int = 0) -> int:
    """Return the index of the right choice: a field has its number from `first`, letter or text, else InputError."""
    try:
        gold = record.value(field)
    except InputError as error:
        raise InputError(f"{error}; {_NO_LABELS}") from error
    number = None
    texts = [choice.strip() for choice in choices]
    if isinstance(gold, str) and gold.strip() in texts:
        number = texts.index(gold.strip())
    elif isinstance(gold, int) or (isinstance(gold, str) and _NUMBER.fullmatch(gold.strip())):
        number = int(gold) - first
    elif isinstance(gold, str) and (letter := _LETTERS.match(gold.strip())):
        number = ord(letter[1].upper()) - ord("A")
    if number is None or not 0 <= number < len(choices):
        hint = f"; {_NO_LABELS}" if str(gold) in ("", "-1") else ""
        raise InputError(f"{record.place}: the right choice {gold!r} is not one of {texts}, by number or letter{hint}")
    return number


# How files are read, and how their records become questions where the options of a task of choices do not define that.
LAYOUTS: Mapping[str, Callable[[Sequence[str]], Iterator[Record]]] = {
    "records": read_records,
    "coqa": read_records,
    "pairs": _read_pairs,
    "cola": functools.partial(_read_classes, columns=("source", "label", "mark", "sentence")),
    "classes": _read_classes,
    "trec": functools.partial(_read_classes, labels=_TREC_LABELS),
    "cbt": _read_cbt,
    "winograd": _read_winograd,
    "questions": _read_questions,
    "hellaswag": _read_hellaswag,
    "winogrande": _read_winogrande,
}
QUESTIONS = {"cbt": _cbt_question, "winograd": _winograd_question}
