"""Tokenizers in every form in which people have them, read as one: the bytes of a `tokenizer.json`.

A vocabulary with merges, and a file of ranks, do not say how text is split before it is merged; GPT-2's way is taken.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from pipelines.algorithms.bpe.byte_level import byte_characters, encode_piece
from pipelines.core import inputs, storage
from pipelines.core.errors import InputError
from pipelines.core.manifest import has_manifest

END_OF_TEXT = "<|endoftext|>"
TOKENIZER = "tokenizer.json"
RANKS_SUFFIX = ".tiktoken"
# Vocabulary and merges: as OpenAI published GPT-2's, and as Hugging Face names the same.
PAIRS = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))
_MERGES_HEADER = "#version"
_AGAIN = "get the file again"
_ALL_IDS = "ids must be 0, 1, 2 and so on without a hole"
_FORMS = (
    "tokenizer.json, encoder.json with vocab.bpe, vocab.json with merges.txt, or a file of tiktoken ranks (*.tiktoken)"
)

Merge = tuple[str, str]


def read_tokenizer(path: str) -> bytes:
    """Return the bytes of a `tokenizer.json` for what is at a path.

    The path is the folder that train-bpe wrote (checked against its manifest); a folder with a `tokenizer.json`, with
    `encoder.json` and `vocab.bpe` (as OpenAI published GPT-2's), with `vocab.json` and `merges.txt`, or with one
    `*.tiktoken`, looked for in this order; or one of these files, a pair by either of its names. Raises InputError,
    naming the file and the line or entry, where there is none of these or it contradicts itself.
    """
    if storage.is_folder(path):
        return _from_folder(path)
    if not storage.exists(path):
        raise InputError(
            f"{path}: no such file or folder, so there is no tokenizer; `webtext train-bpe` makes one, and any in a "
            "form of `tokenizers`, GPT-2 or tiktoken can be named"
        )
    name = storage.basename(path)
    folder = path.removesuffix(name)
    for vocabulary, merges in PAIRS:
        if name in (vocabulary, merges):
            return _from_pair(folder + vocabulary, folder + merges)
    return _from_ranks(path) if name.endswith(RANKS_SUFFIX) else _from_tokenizer_json(path)


def parse_tokenizer(data: bytes, source: str) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json`; `<|endoftext|>` in a text is text to it, never the token.

    Truncation and padding that the file asks for are turned off. Raises InputError, naming `source`, where it is none,
    lacks `<|endoftext|>`, or would give other ids each time.
    """
    try:
        settings = json.loads(data)
        for token in settings["added_tokens"]:
            # Only special tokens can be kept from being recognised in a text.
            token["special"] = token["special"] or token["content"] == END_OF_TEXT
        tokenizer = Tokenizer.from_str(json.dumps(settings))
    except Exception as error:  # tokenizers raises nothing narrower
        raise InputError(f"{source}: is not a tokenizer of the tokenizers library ({error})") from error
    if tokenizer.token_to_id(END_OF_TEXT) is None:
        raise InputError(f"{source}: has no {END_OF_TEXT} in its vocabulary, and documents are divided by it")
    if settings["model"].get("dropout"):
        raise InputError(f"{source}: has BPE dropout, so each run would give other tokens; set its dropout to null")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    if end_of_text_id(tokenizer) in tokenizer.encode(f"a{END_OF_TEXT}b", add_special_tokens=False).ids:
        raise InputError(f"{source}: turns the text {END_OF_TEXT} into the token that divides documents")
    return tokenizer


def end_of_text_id(tokenizer: Tokenizer) -> int:
    """Return the id of `<|endoftext|>` in a tokenizer that has it."""
    id = tokenizer.token_to_id(END_OF_TEXT)
    assert id is not None
    return id


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """Return the number of ids, those that no token uses included."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def byte_level_tokenizer(vocabulary: Mapping[str, int], merges: Sequence[Merge]) -> Tokenizer:
    """Return a `tokenizers` tokenizer with GPT-2's split; `<|endoftext|>`, where it is an entry, is a special token."""
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


def _from_folder(path: str) -> bytes:
    names = storage.list_folder(path)
    if has_manifest(path) or "_journal" in names:
        found = inputs.open_stage(path, ("train-bpe",)).files(TOKENIZER)
        if not found:
            raise InputError(f"{path}: holds counts, no tokenizer; train one with `webtext train-bpe --counts {path}`")
        (file,) = found
        file.verify()
        return storage.read_bytes(file.path)
    if TOKENIZER in names:
        return _from_tokenizer_json(storage.join(path, TOKENIZER))
    for vocabulary, merges in PAIRS:
        if vocabulary in names and merges in names:
            return _from_pair(storage.join(path, vocabulary), storage.join(path, merges))
    ranks = [name for name in names if name.endswith(RANKS_SUFFIX)]
    if len(ranks) == 1:
        return _from_ranks(storage.join(path, ranks[0]))
    if ranks:
        raise InputError(f"{path}: holds several files of ranks ({', '.join(ranks)}); name the one to use")
    for vocabulary, merges in PAIRS:
        if vocabulary in names or merges in names:
            _require_both(storage.join(path, vocabulary), storage.join(path, merges))
    raise InputError(f"{path}: holds no tokenizer in a form that is known here: {_FORMS}")


def _from_tokenizer_json(path: str) -> bytes:
    data = storage.read_bytes(path)
    try:
        settings = json.loads(data)
    except ValueError as error:
        raise InputError(f"{path}: is not a tokenizer.json ({error}); what is read here is {_FORMS}") from error
    if not isinstance(settings, dict) or not isinstance(settings.get("model"), dict):
        raise InputError(
            f'{path}: is JSON but not a tokenizer.json, which has a "model"; rename it if it is a vocabulary: '
            f"what is read here is {_FORMS}"
        )
    return data


def _from_pair(vocabulary_path: str, merges_path: str) -> bytes:
    _require_both(vocabulary_path, merges_path)
    vocabulary = _read_vocabulary(vocabulary_path)
    return tokenizer_json(vocabulary, _read_merges(merges_path, vocabulary, vocabulary_path))


def _require_both(vocabulary_path: str, merges_path: str) -> None:
    for here, missing in ((vocabulary_path, merges_path), (merges_path, vocabulary_path)):
        if not storage.exists(missing):
            raise InputError(
                f"{here}: is half a tokenizer; {storage.basename(missing)} is missing beside it, get the one that "
                "was published with it"
            )


def _read_vocabulary(path: str) -> dict[str, int]:
    """Return the entries of a byte-level vocabulary: all bytes among them, and each id from 0 on used once."""
    entries: Any = storage.read_json(path)
    if not isinstance(entries, dict):
        raise InputError(f"{path}: is not a vocabulary, which is one JSON object of entries and their ids")
    if not _is_unicode("".join(entries)):
        raise InputError(f"{path}: an entry holds half a surrogate pair, which stands for nothing; {_AGAIN}")
    owners: dict[int, str] = {}
    for entry, id in entries.items():
        if type(id) is not int:
            raise InputError(f"{path}: entry {entry!r} has {json.dumps(id)} for an id; {_AGAIN}")
        if id in owners:
            raise InputError(f"{path}: entries {owners[id]!r} and {entry!r} have the same id {id}; {_AGAIN}")
        owners[id] = entry
    _require_all_bytes(path, [character for character in byte_characters().values() if character not in entries])
    for id in range(len(owners)):
        if id not in owners:
            raise InputError(f"{path}: no entry has id {id}, though there are {len(owners)} entries; {_ALL_IDS}")
    return entries


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _require_all_bytes(path: str, missing: Sequence[str]) -> None:
    if missing:
        raise InputError(
            f"{path}: has no entry for {len(missing)} of the 256 bytes ({missing[0]!r} is the first), so it is not a "
            "whole byte-level BPE; give a tokenizer.json, which may be of another kind"
        )


def _read_merges(path: str, vocabulary: Mapping[str, int], vocabulary_path: str) -> list[Merge]:
    """Return the merges of a file in order; raise InputError where they and the vocabulary are not of one tokenizer."""
    try:
        lines = storage.read_bytes(path).decode("utf-8-sig").rstrip("\r\n").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 ({error}), so it is no file of merges; get it again") from error
    made: dict[Merge, int] = {}
    for number, line in enumerate(lines, 1):
        if number == 1 and (line.startswith(_MERGES_HEADER) or not line.strip()):
            continue
        parts = tuple(line.rstrip("\r").split(" "))
        if len(parts) != 2 or not all(parts):
            _refuse_line(path, number, f"{line!r} is not two parts with a space between them", _AGAIN)
        left, right = parts
        for token in (left, right, left + right):
            if token not in vocabulary:
                where = f"{token!r} of the merge {line!r} is not in {storage.basename(vocabulary_path)}"
                _refuse_line(path, number, where, "give the two files of one tokenizer")
        if (left, right) in made:
            where = f"the merge {line!r} is also in line {made[left, right]}"
            _refuse_line(path, number, where, _AGAIN)
        made[left, right] = number
    _require_merges_of_all(path, vocabulary, vocabulary_path, made)
    return list(made)


def _require_merges_of_all(
    path: str, vocabulary: Mapping[str, int], vocabulary_path: str, merges: Mapping[Merge, int]
) -> None:
    """Refuse a file of merges that is cut short: entries that nothing makes are special tokens, written `<so>`."""
    made = {left + right for left, right in merges}
    for entry, id in vocabulary.items():
        is_special = (entry[:1], entry[-1:]) in (("<", ">"), ("[", "]"))
        if len(entry) > 1 and entry not in made and not is_special:
            raise InputError(
                f"{path}: no merge makes the entry {entry!r} (id {id}) of {storage.basename(vocabulary_path)}, so it "
                "is cut short or of another tokenizer; get both files again, or give a tokenizer.json if this is an "
                "added token"
            )


class _Rank(NamedTuple):
    rank: int
    token: bytes
    line: int


def _from_ranks(path: str) -> bytes:
    ranks = _read_ranks(path)
    tokens = [token_characters(each.token) for each in ranks]
    merges = [(tokens[left], tokens[right]) for left, right in _merges_of_ranks(path, ranks)]
    vocabulary = {token: id for id, token in enumerate([*tokens, END_OF_TEXT])}
    return tokenizer_json(vocabulary, merges)


def _read_ranks(path: str) -> list[_Rank]:
    """Return the lines of a file of ranks by rank: each token and each rank from 0 on once, the bytes among them."""
    ranks: list[_Rank] = []
    lines: dict[bytes, int] = {}
    for number, line in enumerate(storage.read_bytes(path).split(b"\n"), 1):
        if not line.strip():
            continue
        each = _read_rank(path, number, line)
        if each.token in lines:
            _refuse_line(path, number, f"the token {each.token!r} is also in line {lines[each.token]}", _AGAIN)
        if each.token == END_OF_TEXT.encode():
            _refuse_line(path, number, f"{END_OF_TEXT} has a rank, as only what merges make has", "remove the line")
        lines[each.token] = number
        ranks.append(each)
    ranks.sort()
    for id, each in enumerate(ranks):
        if each.rank < id:
            twice = f"the rank {each.rank} is also in line {ranks[id - 1].line}"
            _refuse_line(path, each.line, twice, _AGAIN)
        if each.rank > id:
            raise InputError(f"{path}: no token has rank {id}, though line {each.line} has {each.rank}; {_ALL_IDS}")
    missing = [character for byte, character in byte_characters().items() if bytes([byte]) not in lines]
    _require_all_bytes(path, missing)
    return ranks


def _read_rank(path: str, number: int, line: bytes) -> _Rank:
    parts = line.split()
    if len(parts) != 2 or not parts[1].isdigit():
        shown = line[:60].decode("utf-8", "backslashreplace")
        _refuse_line(path, number, f"{shown!r} is not a token in base64 and its rank", _AGAIN)
    try:
        return _Rank(int(parts[1]), base64.b64decode(parts[0], validate=True), number)
    except (binascii.Error, ValueError) as error:
        _refuse_line(path, number, f"its token is not base64 ({error})", _AGAIN)


def _merges_of_ranks(path: str, ranks: Sequence[_Rank]) -> list[tuple[int, int]]:
    """Return the ranks of the two parts of each token of several bytes, in order of rank.

    A merge made each of them of what the merges before it left of its bytes, so these must be two parts.
    """
    known = {each.token: each.rank for each in ranks if len(each.token) == 1}
    merges: list[tuple[int, int]] = []
    for each in ranks:
        if len(each.token) == 1:
            continue
        parts = encode_piece(each.token, known)
        if len(parts) != 2:
            what = f"the token {each.token!r} (rank {each.rank}) is {len(parts)} tokens of lower rank, not two"
            _refuse_line(path, each.line, what, "these are no ranks of a BPE, or lines are missing: get the file again")
        merges.append((parts[0], parts[1]))
        known[each.token] = each.rank
    return merges


def _refuse_line(path: str, number: int, what: str, way_out: str) -> NoReturn:
    raise InputError(f"{path}, line {number}: {what}; {way_out}")
