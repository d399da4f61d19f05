"""The options of `webtext extract`."""

from __future__ import annotations

import dataclasses

from pipelines.engine.config import option
from pipelines.records.wishes import HONOR_HELP

CONTENTS = ("main", "article", "auto")
# ISO 639-1, and the former codes of four languages.
LANGUAGES = tuple(
    """
    aa ab ae af ak am an ar as av ay az ba be bg bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en eo es
    et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik in io is it iu iw ja ji jv
    ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng
    nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su
    sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
    """.split()
)


@dataclasses.dataclass(frozen=True)
class ExtractConfig:
    """How text is extracted, and which pages are dropped."""

    extractor: str = option("fast", "Extractor of the main text.", choices=("fast", "trafilatura", "newspaper"))
    content: str = option(
        "auto",
        "Scope of the fast extractor: main content or article body; auto uses article for article pages and main "
        "otherwise.",
        choices=CONTENTS,
        only_with="extractor=fast",
    )
    format: str = option(
        "text",
        "Format of the text: plain text, or Markdown with headings, lists, tables and code; the same blocks are kept.",
        choices=("text", "markdown"),
        only_with="extractor=fast|trafilatura",
    )
    honor: tuple[str, ...] = option((), HONOR_HELP)
    declared_language: str | None = option(
        None, "Keep only pages whose HTML declares this language (such as en) or none.", example="en"
    )
    min_words: int = option(0, "Minimum number of words per document.", minimum=0)
    fix_text: bool = option(False, "Repair wrongly decoded text (mojibake) with ftfy.")
    keep_non_documents: bool = option(
        False, "Keep error pages, bot checks, login walls and other pages that are not documents."
    )
    timeout: float = option(30.0, "Per-page timeout in seconds.", minimum=0.1)
    memory_limit_mib: int = option(2048, "Per-page memory limit in MiB.", minimum=512)
