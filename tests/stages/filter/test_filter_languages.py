"""The language of a text is the one that py3langid finds, and unknown where there is none."""

from __future__ import annotations

import itertools
import json
import random
import unicodedata

import pyarrow as pa
import pytest
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from pipelines.stages.filter import languages
from pipelines.stages.filter.languages import CHARACTERS, CODES, identify
from pipelines.storage.compression import open_decompressed

TEXTS = {
    "en": "The committee met on Tuesday, and its members discussed the plans for the new library in the old harbour.",
    "de": "Der Ausschuss trat am Dienstag zusammen und besprach die Pläne für die neue Bibliothek am alten Hafen.",
    "fr": "Le comité s'est réuni mardi et ses membres ont discuté des projets de la nouvelle bibliothèque du port.",
    "pl": "Komisja zebrała się we wtorek, a jej członkowie omówili plany nowej biblioteki w starym porcie.",
    "ru": "Комитет собрался во вторник, и его члены обсудили планы новой библиотеки в старом порту.",
    "el": "Η επιτροπή συνεδρίασε την Τρίτη και τα μέλη της συζήτησαν τα σχέδια για τη νέα βιβλιοθήκη στο λιμάνι.",
    "zh": "委员会星期二开会，委员们讨论了在旧港口建造新图书馆的计划。",
    "ja": "委員会は火曜日に開かれ、古い港に新しい図書館を建てる計画について話し合いました。",
    "ar": "اجتمعت اللجنة يوم الثلاثاء وناقش أعضاؤها خطط المكتبة الجديدة في الميناء القديم.",
    "sr": "Одбор се састао у уторак, а чланови су разговарали о плановима за нову библиотеку у старој луци.",
    "vi": "Ủy ban đã họp vào thứ Ba và các thành viên đã thảo luận về kế hoạch xây thư viện mới ở bến cảng cũ.",
    "ko": "위원회는 화요일에 모여 옛 항구에 새 도서관을 짓는 계획을 논의했습니다.",
}


@pytest.fixture(scope="module")
def library() -> LanguageIdentifier:
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identifier.set_languages([*CODES, "zxx"])
    return identifier


def test_the_library_finds_the_same_languages_and_probabilities(library, monkeypatch):
    monkeypatch.setattr(languages, "_TEXTS", 5)
    texts = [form for text in TEXTS.values() for form in (text, text.upper(), unicodedata.normalize("NFD", text))]
    texts += [text[:size] for text in TEXTS.values() for size in (3, 10, 25)]
    texts += [" ".join(TEXTS.values()), "a" * 40, "İstanbul'da bir gün", "\ud55c", "x\0y and z"]
    texts += ["İSTANBUL'DA BİR GÜN", "ΟΔΟΣ ΤΗΣ ΠΟΛΗΣ"]
    check_same_as_library(texts, library)


def test_damaged_and_long_texts_get_the_languages_of_the_library(library):
    texts = [f"{text[:20]}\ufffd\x00{text[20:40]}\x1b\u200b{text[40:]}\r\n" for text in TEXTS.values()]
    texts += [f"x{text}"[::-1] for text in TEXTS.values()]
    texts += [text * 40 for text in TEXTS.values()]
    texts += [text.encode().decode("cp1252", "replace") for text in TEXTS.values()]
    # Longer in bytes, and as normal forms also in characters, than `CHARACTERS`.
    texts += [
        "\ufb2cא" * CHARACTERS,
        "İ" * CHARACTERS,
        "ΐA" * CHARACTERS,
        "𝐀😀 word " * CHARACTERS,
        "e\u0301" * CHARACTERS,
    ]
    check_same_as_library(texts, library)


def test_pieces_of_real_texts_get_the_languages_of_the_library(shared_data, library):
    with open_decompressed(str(shared_data / "text" / "docs.jsonl.zst")) as stream:
        pages = [json.loads(line)["text"] for line in itertools.islice(stream, 200)]
    with open_decompressed(str(shared_data / "reddit" / "submissions-2013.ndjson.zst")) as stream:
        titles = [json.loads(line)["title"] for line in itertools.islice(stream, 1000)]
    draw = random.Random(1)
    starts = [(page, draw.randrange(len(page)), draw.randrange(20, 2000)) for page in pages for _ in range(5)]
    check_same_as_library([*titles, *(page[start : start + size] for page, start, size in starts)], library)


def check_same_as_library(texts, library):
    codes, scores = identify(pa.array(texts))
    for text, code, score in zip(texts, codes.to_pylist(), scores.to_pylist(), strict=True):
        expected, probability = library.classify(text[:CHARACTERS])
        if expected == "zxx" or not any(map(str.isalpha, text[:CHARACTERS])):
            expected = probability = None
        # No feature of the model is in the text; `sr` has two classes.
        if (expected, probability) == ("sr", pytest.approx(2 / len(library.nb_classes))):
            expected = probability = None
        assert (code, score) == (expected, pytest.approx(probability, abs=1e-4)), text[:100]


def test_texts_are_recognized_whatever_their_neighbours():
    texts = pa.array(["skipped", *TEXTS.values()]).slice(1)
    codes, scores = identify(texts)
    assert codes.to_pylist() == list(TEXTS)
    assert min(scores.to_pylist()) > 0.5
    assert max(scores.to_pylist()) <= 1
    for row, text in enumerate(texts.to_pylist()):
        code, score = identify(pa.array([text]))
        assert (code[0].as_py(), score[0].as_py()) == (codes[row].as_py(), scores[row].as_py())


def test_a_text_without_language_has_no_code_and_no_score():
    texts = ["", " \n", "!!!", "1984", "3.14 + 2.71 = 5.85", "→ ★ ☎", "🎉🎉"]
    codes, scores = identify(pa.array(texts))
    assert codes.to_pylist() == scores.to_pylist() == [None] * len(texts)
    assert (codes.type, scores.type) == (pa.string(), pa.float32())


def test_no_texts_have_no_languages():
    codes, scores = identify(pa.array([], pa.string()))
    assert (codes.type, len(codes), scores.type, len(scores)) == (pa.string(), 0, pa.float32(), 0)


def test_only_the_beginning_of_a_text_is_read():
    beginning = (TEXTS["en"] * 10)[:CHARACTERS]
    codes, scores = identify(pa.array([beginning, beginning + TEXTS["ru"] * 100]))
    assert codes.to_pylist() == ["en", "en"]
    assert scores[0] == scores[1]


def test_codes_are_those_of_the_model_that_have_two_letters():
    model = LanguageIdentifier.from_model_file(MODEL_FILE)
    assert sorted(CODES) == sorted(label for label in model.labels if len(label) == 2)


def test_nothing_is_printed(capfd):
    languages._load_model.cache_clear()
    identify(pa.array(list(TEXTS.values())))
    assert capfd.readouterr() == ("", "")


def test_a_real_german_text(shared_data):
    words = (shared_data / "bpe_fixtures" / "german.txt").read_text().split()
    codes, _ = identify(pa.array([" ".join(words[first : first + 30]) for first in range(0, len(words), 30)]))
    assert set(codes.to_pylist()) == {"de"}
