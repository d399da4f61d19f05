"""The Arrow schemas of the records that pass from stage to stage; `docs/formats.md` defines each field."""

from __future__ import annotations

import pyarrow as pa

STRINGS = pa.list_(pa.string())
INSTANT = pa.timestamp("ms", tz="UTC")
_TYPES = {"strings": STRINGS, "instant": INSTANT}


def make_schema(**kinds: str | pa.DataType) -> pa.Schema:
    """Return a schema from the types of fields by name; a field whose type is named with `?` may be null."""
    fields = []
    for name, kind in kinds.items():
        type_name = kind.removesuffix("?") if isinstance(kind, str) else ""
        data_type = _TYPES.get(type_name) or pa.type_for_alias(type_name) if type_name else kind
        fields.append(pa.field(name, data_type, nullable=bool(type_name) and type_name != kind))
    return pa.schema(fields)


LINK_SCHEMA = make_schema(
    url="string", original_url="string", domain="string", score="int64", submission_ids="strings",
    subreddits="strings", authors="strings", title="string", created_utc="int64", over_18="bool",
)  # fmt: skip

PAGE_SCHEMA = make_schema(
    url="string", final_url="string?", status="int32?", outcome="string", source="string", fetched_at="instant",
    bytes="int64", warc_file="string?", warc_offset="int64?", captured_at="instant?", captured_days="int32?",
    archives="string?",
)  # fmt: skip

DOCUMENT_SCHEMA = make_schema(
    id="string", url="string?", url_source="string?", final_url="string?", domain="string?", title="string?",
    author="string?", published="string?", site_name="string?", declared_type="string?", page_type="string?",
    confidence="float32?", text="string", language="string?", score="int64?", submission_ids="strings?",
    subreddits="strings?", created_utc="int64?", fetched_at="instant?", extractor="string?", words="int64?",
    warc_file="string?", warc_offset="int64?", license="string?", license_url="string?", license_location="string?",
    signals="strings?",
)  # fmt: skip

DROPPED_SCHEMA = make_schema(id="string", url="string?", reason="string", detail="string?")
