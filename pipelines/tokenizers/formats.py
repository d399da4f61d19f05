"""Reads a tokenizer in any common form as the bytes of a `tokenizer.json`; writes one in the format of each library.

Vocabulary and merges, or a file of ranks, do not say how text is split before merging; GPT-2's split is used. The
readers of `tokenizers` and `tiktoken` accept files that are cut short or list an entry twice, so they are parsed here.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from pipelines import storage
from pipelines.algorithms.bpe.byte_level import byte_characters, encode_piece, token_bytes
from pipelines.algorithms.web.text_repair import replace_surrogates
from pipelines.engine.journal import is_unfinished
from pipelines.engine.manifest import has_manifest
from pipelines.errors import InputError, WebtextError
from pipelines.records import inputs

END_OF_TEXT = "<|endoftext|>"
TOKENIZER = "tokenizer.json"
RANKS_SUFFIX = ".tiktoken"
# Vocabulary and merges: as OpenAI published GPT-2's, and as Hugging Face names them.
PAIRS = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))
# The files that `tokenizer_files` returns.
FILES = (
    TOKENIZER, "vocab.json", "merges.txt", "encoder.json", "vocab.bpe", "ranks.tiktoken", "tokenizer_config.json",
)  # fmt: skip
# What `transformers` reads from a tokenizer folder in addition to tokenizer.json, as in GPT-2's own.
_TRANSFORMERS_CONFIG = {
    "tokenizer_class": "GPT2Tokenizer",
    "model_max_length": 1024,
    "add_prefix_space": False,
    "bos_token": END_OF_TEXT,
    "eos_token": END_OF_TEXT,
    "unk_token": END_OF_TEXT,
}
_MERGES_HEADER = "#version"
# Tables of the vocabulary have a row for each id; the largest vocabularies have about a million.
_MAX_ENTRIES = 1 << 24
_AGAIN = "download it again"
_FORMS = "tokenizer.json, encoder.json with vocab.bpe, vocab.json with merges.txt, or tiktoken ranks (*.tiktoken)"

Merge = tuple[str, str]


def read_tokenizer(path: str) -> bytes:
    """Return the bytes of a `tokenizer.json` for the tokenizer at a path.

    The path is the folder that train-bpe wrote (checked against its manifest); a folder with a `tokenizer.json`, with
    `encoder.json` and `vocab.bpe` (as OpenAI published GPT-2's), with `vocab.json` and `merges.txt`, or with one
    `*.tiktoken`, looked for in this order; or one of these files, a pair by either of its names. Raises InputError,
    naming the file and the line or entry, if none of these exists or if it contradicts itself.
    """
    if not storage.exists(path) and not storage.is_folder(path):
        raise InputError(
            f"{path}: no such file or folder; run `webtext train-bpe`, or name one with --tokenizer: {_FORMS}"
        )
    if storage.is_folder(path):
        path = _find_in_folder(path)
    name = storage.basename(path)
    for vocabulary, merges in PAIRS:
        if name in (vocabulary, merges):
            folder = path.removesuffix(name)
            return _from_pair(folder + vocabulary, folder + merges)
    return _from_ranks(path) if name.endswith(RANKS_SUFFIX) else _from_tokenizer_json(path)


def load_tokenizer(data: bytes, source: str) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json`, without truncation and padding.

    Raises InputError, naming `source`, if it cannot be loaded.
    """
    try:
        tokenizer = Tokenizer.from_buffer(data)
        tokenizer.encode("a")  # raises if it has no token for unknown characters
    except BaseException as error:  # tokenizers raises nothing narrower; its panics are not even an Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{source}: is not a tokenizer of the tokenizers library ({error})") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def load_document_tokenizer(data: bytes, source: str) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json` that encodes documents: `<|endoftext|>` in a text is encoded as text.

    Raises InputError, naming `source`, if it cannot be loaded, lacks `<|endoftext|>`, or encodes at random.
    """
    try:
        settings = json.loads(data)
        for token in settings["added_tokens"]:
            # Only special tokens can be kept from being recognized in a text.
            token["special"] = token["special"] or token["content"] == END_OF_TEXT
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{source}: is not a tokenizer of the tokenizers library ({error})") from error
    tokenizer = load_tokenizer(json.dumps(settings).encode(), source)
    if vocabulary_size(tokenizer) > _MAX_ENTRIES:
        raise InputError(f"{source}: has the id {vocabulary_size(tokenizer) - 1:,}, larger than any vocabulary")
    if tokenizer.token_to_id(END_OF_TEXT) is None:
        raise InputError(f"{source}: has no {END_OF_TEXT} in its vocabulary, which separates documents")
    if settings["model"].get("dropout"):
        raise InputError(f"{source}: has BPE dropout, so ids would differ from run to run; set its dropout to null")
    tokenizer.encode_special_tokens = True
    if end_of_text_id(tokenizer) in tokenizer.encode(f"a{END_OF_TEXT}b", add_special_tokens=False).ids:
        raise InputError(f"{source}: encodes the text {END_OF_TEXT} as the token that separates documents")
    return tokenizer


def end_of_text_id(tokenizer: Tokenizer) -> int:
    """Return the id of `<|endoftext|>` in a tokenizer that has it."""
    id = tokenizer.token_to_id(END_OF_TEXT)
    assert id is not None
    return id


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """Return the number of ids, including unused ones."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def splits_as_gpt2(settings: Mapping[str, Any]) -> bool:
    """Return whether the tokenizer of a `tokenizer.json` splits text into words as GPT-2's does."""
    split = settings.get("pre_tokenizer") or {}
    is_plain = split.get("use_regex", True) and not split.get("add_prefix_space", True)
    return bool(not settings.get("normalizer") and split.get("type") == "ByteLevel" and is_plain)


def byte_level_tokenizer(vocabulary: Mapping[str, int], merges: Sequence[Merge]) -> Tokenizer:
    """Return a `tokenizers` tokenizer with GPT-2's split; `<|endoftext|>`, if it is an entry, is a special token."""
    tokenizer = Tokenizer(models.BPE(dict(vocabulary), list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    if END_OF_TEXT in vocabulary:
        tokenizer.add_special_tokens([END_OF_TEXT])
    return tokenizer


def tokenizer_json(vocabulary: Mapping[str, int], merges: Sequence[Merge]) -> bytes:
    """Return the bytes of the `tokenizer.json` of a byte-level BPE with GPT-2's split."""
    return (byte_level_tokenizer(vocabulary, merges).to_str(pretty=True) + "\n").encode()


def token_characters(token: bytes) -> str:
    """Return a token as GPT-2's vocabularies write it: a character for each byte."""
    return token.decode("latin-1").translate(byte_characters())


def token_bytes_of(merges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Return the bytes of each entry: the 256 bytes in GPT-2's order, then the result of each merge of two ids."""
    tokens = [bytes([byte]) for byte in byte_characters()]
    for left, right in merges:
        tokens.append(tokens[left] + tokens[right])
    return tokens


def tokenizer_files(merges: Sequence[tuple[int, int]]) -> dict[str, bytes]:
    """Return the bytes of each file by name; `<|endoftext|>` is the last entry.

    Raises WebtextError if two merges create the same entry.
    """
    tokens = token_bytes_of(merges)
    entries = [token_characters(token) for token in tokens]
    vocabulary = {entry: id for id, entry in enumerate([*entries, END_OF_TEXT])}
    if len(vocabulary) != len(tokens) + 1:
        raise WebtextError("train-bpe: two merges create one entry; this is a bug in webtext, please report it")
    pairs = [(entries[left], entries[right]) for left, right in merges]
    lines = "\n".join([f"{_MERGES_HEADER}: 0.2", *(f"{left} {right}" for left, right in pairs), ""]).encode()
    return {
        TOKENIZER: tokenizer_json(vocabulary, pairs),
        "vocab.json": (json.dumps(vocabulary, ensure_ascii=False) + "\n").encode(),
        "merges.txt": lines,
        "encoder.json": json.dumps(vocabulary).encode(),
        "vocab.bpe": lines,
        "ranks.tiktoken": b"".join(b"%b %d\n" % (base64.b64encode(token), id) for id, token in enumerate(tokens)),
        "tokenizer_config.json": (json.dumps(_TRANSFORMERS_CONFIG, indent=1) + "\n").encode(),
    }


def _find_in_folder(folder: str) -> str:
    """Return the path of the file to read, either one of a pair."""
    names = storage.list_folder(folder)
    if has_manifest(folder) or is_unfinished(folder):
        files = inputs.open_stage(folder, ("train-bpe",)).files(TOKENIZER)
        if not files:
            raise InputError(
                f"{folder}: contains counts but no tokenizer; train one with `webtext train-bpe --counts {folder}`"
            )
        files[0].verify()
        return files[0].path
    ranks = [name for name in names if name.endswith(RANKS_SUFFIX)]
    whole_pairs = [pair[0] for pair in PAIRS if {*pair} <= {*names}]
    candidates = [*(name for name in names if name == TOKENIZER), *whole_pairs]
    if not candidates and len(ranks) > 1:
        raise InputError(f"{folder}: contains several files of ranks ({', '.join(ranks)}); name one of them")
    # Half a pair comes last; the error then names the missing half.
    candidates += [*ranks, *(name for pair in PAIRS for name in pair if name in names)]
    if not candidates:
        raise InputError(f"{folder}: contains no tokenizer in a known form: {_FORMS}")
    return storage.join(folder, candidates[0])


def _from_tokenizer_json(path: str) -> bytes:
    data = storage.read_bytes(path)
    try:
        settings = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not a tokenizer.json ({error}); known forms: {_FORMS}") from error
    if not isinstance(settings, dict) or not isinstance(settings.get("model"), dict):
        raise InputError(
            f'{path}: is JSON but not a tokenizer.json, which has a "model"; rename it if it is a vocabulary: '
            f"known forms are {_FORMS}"
        )
    return data


def _from_pair(vocabulary_path: str, merges_path: str) -> bytes:
    for path, other in ((vocabulary_path, merges_path), (merges_path, vocabulary_path)):
        if not storage.exists(other):
            raise InputError(
                f"{path}: is half a tokenizer; {storage.basename(other)} is missing next to it: download the one "
                "published with it"
            )
    vocabulary: Any = storage.read_json(vocabulary_path)
    if not isinstance(vocabulary, dict):
        raise InputError(f"{vocabulary_path}: is not a vocabulary, which is one JSON object of entries and their ids")
    if replace_surrogates("".join(vocabulary)) != "".join(vocabulary):
        raise InputError(f"{vocabulary_path}: an entry contains half a surrogate pair; {_AGAIN}")
    _check_ids(vocabulary_path, vocabulary)
    return tokenizer_json(vocabulary, _read_merges(merges_path, vocabulary, storage.basename(vocabulary_path)))


def _check_ids(path: str, ids: Mapping[str, int]) -> None:
    """Raise InputError unless all bytes have an entry, and the ids are 0, 1, 2 and so on, each used once."""
    entries: dict[int, str] = {}
    for entry, id in ids.items():
        if type(id) is not int:
            raise InputError(f"{path}: entry {entry!r} has {json.dumps(id)} for an id; {_AGAIN}")
        if id in entries:
            raise InputError(f"{path}: entries {entries[id]!r} and {entry!r} have the same id {id}; {_AGAIN}")
        entries[id] = entry
    missing = [character for character in byte_characters().values() if character not in ids]
    if missing:
        raise InputError(
            f"{path}: has no entry for {len(missing)} of the 256 bytes (the first is {missing[0]!r}), so it is not a "
            "complete byte-level BPE; use a tokenizer.json, which may be of another kind"
        )
    for id in range(len(entries)):
        if id not in entries:
            raise InputError(f"{path}: no entry has id {id}, although it has {len(entries)} entries; {_AGAIN}")


def _read_merges(path: str, vocabulary: Mapping[str, int], vocabulary_name: str) -> list[Merge]:
    """Return the merges of a file in order; raise InputError if they do not belong to the vocabulary."""
    try:
        lines = storage.read_bytes(path).decode("utf-8-sig").rstrip("\r\n").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not a merges file, as it is not UTF-8 ({error}); {_AGAIN}") from error
    numbers: dict[Merge, int] = {}
    for number, line in enumerate(lines, 1):
        if number == 1 and (line.startswith(_MERGES_HEADER) or not line.strip()):
            continue
        left, _, right = line.rstrip("\r").partition(" ")
        if not left or not right or " " in right:
            raise _line_error(path, number, f"{line!r} is not two parts separated by a space")
        for token in (left, right, left + right):
            if token not in vocabulary:
                problem = f"{token!r} of the merge {line!r} is not in {vocabulary_name}"
                raise _line_error(path, number, problem, "use the two files of one tokenizer")
        if (left, right) in numbers:
            raise _line_error(path, number, f"the merge {line!r} is also in line {numbers[left, right]}")
        numbers[left, right] = number
    merged = {left + right for left, right in numbers}
    for entry, id in vocabulary.items():
        # Entries that no merge creates are special tokens, written `<so>` or `[SO]`, unless the file is cut short.
        is_special = (entry[:1], entry[-1:]) in (("<", ">"), ("[", "]"))
        if len(entry) > 1 and entry not in merged and not is_special:
            raise InputError(
                f"{path}: no merge creates the entry {entry!r} (id {id}) of {vocabulary_name}, so it is cut short or "
                "belongs to another tokenizer; download both files again, or use a tokenizer.json if the entry is an "
                "added token"
            )
    return list(numbers)


def _from_ranks(path: str) -> bytes:
    ranks = _read_ranks(path)
    vocabulary = {token_characters(token): rank for token, rank in ranks.items()}
    _check_ids(path, vocabulary)
    entries = sorted(vocabulary, key=vocabulary.__getitem__)
    merges = _merges_of_ranks(path, entries)
    return tokenizer_json({entry: id for id, entry in enumerate([*entries, END_OF_TEXT])}, merges)


def _read_ranks(path: str) -> dict[bytes, int]:
    """Return the ranks in a file by token; raise InputError for a line that is not a token in base64 and its rank."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(storage.read_bytes(path).split(b"\n"), 1):
        if not line.strip():
            continue
        parts = line.split()
        if len(parts) != 2 or not parts[1].isdigit():
            text = line[:60].decode("utf-8", "backslashreplace")
            raise _line_error(path, number, f"{text!r} is not a token in base64 and its rank")
        try:
            token = base64.b64decode(parts[0], validate=True)
            rank = int(parts[1])
        except (binascii.Error, ValueError) as error:
            raise _line_error(path, number, f"its token is not base64 ({error})") from error
        if token in ranks:
            raise _line_error(path, number, f"the token {token!r} has a rank in an earlier line already")
        if token == END_OF_TEXT.encode():
            raise _line_error(path, number, f"{END_OF_TEXT} has a rank, but no merge creates it", "remove the line")
        ranks[token] = rank
    return ranks


def _merges_of_ranks(path: str, entries: Sequence[str]) -> list[Merge]:
    """Return the two parts of each entry of several bytes, in order of rank.

    A merge created each entry from what the merges before it left of its bytes, so these must be two parts.
    """
    known = {token_bytes(entry): id for id, entry in enumerate(entries) if len(entry) == 1}
    merges: list[Merge] = []
    for id, entry in enumerate(entries):
        if len(entry) == 1:
            continue
        token = token_bytes(entry)
        parts = [entries[part] for part in encode_piece(token, known)]
        if len(parts) != 2:
            raise InputError(
                f"{path}: the token {token!r} (rank {id}) is {len(parts)} tokens of lower rank, not two, so these are "
                f"not the ranks of a BPE, or lines are missing; {_AGAIN}"
            )
        merges.append((parts[0], parts[1]))
        known[token] = id
    return merges


def _line_error(path: str, number: int, problem: str, advice: str = _AGAIN) -> InputError:
    return InputError(f"{path}, line {number}: {problem}; {advice}")
