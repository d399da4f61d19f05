"""What the stages dropped: the rules, the largest first, and examples of one to label as rightly or wrongly dropped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from pipelines.browse.site import address, number_of, site_of
from pipelines.corpus.documents import choose_documents
from pipelines.corpus.drops import add_label, count_drops, precision, read_labels
from pipelines.corpus.tables import CorpusTables, documents_of
from pipelines.errors import UsageError

_EXAMPLES, _FIRST_SEED = 10, 1


def show_dropped(request: Request) -> Response:
    """Show the rules with their counts, or with `stage` and `reason` examples of one rule."""
    site, query = site_of(request), request.query_params
    stage, reason, domain = (query.get(name) for name in ("stage", "reason", "domain"))
    seed = number_of(request, "seed") or _FIRST_SEED
    with site.tables(request) as tables:
        rules = count_drops(tables)
        rule = next((rule for rule in rules if (rule["stage"], rule["reason"]) == (stage, reason)), None)
        if rule and not rule["is_listed"]:
            raise UsageError(f"{stage} only counts what it drops for {reason}, and has no examples")
        conditions: Any = {"stage": stage, "reason": reason, "domain": domain}
        examples = choose_documents(tables, **conditions, seed=seed, limit=_EXAMPLES) if stage and reason else []
        kept = _kept_documents(tables, examples) if stage == "dedup" else {}
    labels = read_labels(site.corpus) if site.corpus else {}
    for row in [rule] if rule else rules:
        row["precision"] = precision(labels.get((row["stage"], row["reason"]), {}).values())
    if rule is None:
        return site.render(request, "rules.html", rules=rules)
    state: Any = {"conditions": conditions, "seed": seed, "labelled": labels.get((rule["stage"], rule["reason"]), {})}
    return site.render(request, "dropped.html", rule=rule, examples=examples, kept=kept, **state)


def _kept_documents(tables: CorpusTables, rows: Sequence[dict[str, Any]]) -> dict[str, tuple[str | None, float | None]]:
    """Return the URL of the document that was kept instead of each duplicate, and their similarity, if it is known."""
    marks = ", ".join("?" * len(rows))
    query = f"SELECT id, url FROM {documents_of('dedup')} WHERE id IN ({marks})"
    urls = {row["id"]: row["url"] for row in tables.rows(query, [row["detail"] for row in rows])}
    query = f"SELECT id, jaccard FROM clusters WHERE id IN ({marks})"
    duplicates = tables.rows(query, [row["id"] for row in rows]) if "clusters" in tables.views else []
    similarities = {row["id"]: row["jaccard"] for row in duplicates}
    return {row["id"]: (urls.get(row["detail"]), similarities.get(row["id"])) for row in rows}


def save_label(request: Request) -> Response:
    """Save the label of an example, and return to the next one."""
    site, query = site_of(request), request.query_params
    stage, reason, id = (query.get(name, "") for name in ("stage", "reason", "id"))
    if site.corpus is None:
        raise UsageError("labels are saved in a corpus folder; browse one with --corpus")
    sample = address(
        "/dropped", stage=stage, reason=reason, domain=query.get("domain"), seed=number_of(request, "seed")
    )
    example = number_of(request, "example") or 0
    with site.tables(request) as tables:
        row = tables.first("dropped", "stage = ? AND reason = ? AND id = ?", [stage, reason, id], "url")
        if row is None:
            raise UsageError(f"{id}: {stage} did not drop this document for {reason}")
        add_label(site.corpus, id=id, url=row["url"], stage=stage, reason=reason, label=query.get("label"))
    return RedirectResponse(f"{sample}#example-{example + 1}", 303)


NAVIGATION = (("/dropped", "Dropped"),)
ROUTES = (Route("/dropped", show_dropped), Route("/labels", save_label, methods=["POST"]))
