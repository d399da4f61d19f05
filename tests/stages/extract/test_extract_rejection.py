"""Pages that are not documents are dropped by reason; pages about such pages are kept."""

from __future__ import annotations

import time

import pytest
from extract_run import HTML_HEADERS, page_row, rows, run, warc_bytes, write_stage

from pipelines.records import shards
from pipelines.records.schemas import PAGE_SCHEMA
from pipelines.stages.extract.rejection import estimate_words, find_rejection

pytestmark = pytest.mark.usefixtures("warm_processes")

ARTICLE = "The old market was full of people before the rain came over the hill. " * 40
REJECTED = {
    "soft_404": ("Page not found | Shop", "We could not find that page. Try the search instead."),
    "captcha": ("Just a moment...", "Enable JavaScript and cookies to continue"),
    "consent_wall": ("News", "You must be at least 18 years old to enter this website."),
    "login_wall": ("Log in | Forum", "You must be logged in to view this page."),
    "paywall": ("Bridge closes", "The bridge closes in May. Subscribe to continue reading."),
    "parked_domain": ("name.example", "This domain is for sale. Make an offer."),
    "error_page": ("502 Bad Gateway", "502 Bad Gateway\nnginx"),
    "nearly_empty": ("Gallery", "Next picture"),
}


def html_of(title: str, text: str, markup: str = "") -> str:
    return f"<html><head><title>{title}</title></head><body>{markup}<p>{text}</p></body></html>"


def reason_of(title: str, text: str, markup: str = "", **urls: str) -> str | None:
    rejection = find_rejection(title, text, html_of(title, text, markup).encode(), **urls)
    return rejection.reason if rejection else None


@pytest.mark.parametrize("reason", REJECTED)
def test_each_reason_is_recognized(reason):
    assert reason_of(*REJECTED[reason]) == reason


@pytest.mark.parametrize("reason", [reason for reason in REJECTED if reason != "nearly_empty"])
def test_a_long_text_is_kept_whatever_it_says(reason):
    title, text = REJECTED[reason]
    assert reason_of(title, f"{text}\n\n{ARTICLE}") is None


@pytest.mark.parametrize(
    ("title", "text"),
    [
        ("What is a 404 page?", "A 404 page is what visitors see when the page they are looking for does not exist."),
        ("Why do I see a check?", "Since today I see “Just a moment... Enable JavaScript and cookies to continue”."),
        ("Log in | Handbook", "Open the app, enter your address and password, and click the button below them."),
        ("404 - The Servers", "Song by The Servers from their second album. Written by J. Pike, four minutes."),
        (
            "Trail maintenance",
            "The ridge trail is under maintenance until May. Volunteers meet at eight; bring gloves.",
        ),
        ("Loose screw", "It comes back after a day. Tighten the other one first. You must log in to reply."),
    ],
)
def test_a_short_document_about_such_pages_is_kept(title, text):
    assert reason_of(title, text) is None


def test_an_article_that_ends_with_an_offer_is_kept():
    assert estimate_words(ARTICLE) > 500
    assert reason_of("On bread", f"{ARTICLE}\n\nSubscribe to continue reading.") is None


@pytest.mark.parametrize(
    ("language", "text", "reason"),
    [
        ("de", "Die gesuchte Seite konnte nicht gefunden werden.", "soft_404"),
        ("fr", "Désolé, la page demandée n’existe plus sur notre site.", "soft_404"),
        ("es", "Debes iniciar sesión para ver este contenido del foro.", "login_wall"),
        ("it", "Questo contenuto è riservato agli abbonati del giornale.", "paywall"),
        ("nl", "Bevestig dat u een mens bent door het vakje te kiezen.", "captcha"),
        ("pt", "Confirme que você é humano. Isso leva alguns segundos.", "captcha"),
        ("ru", "Подтвердите, что вы не робот, чтобы читать дальше.", "captcha"),
        ("ja", "お探しのページは削除されたか、移動した可能性があります。", "soft_404"),
        ("zh", "抱歉，您访问的页面不存在或者已经被删除。", "soft_404"),
        ("pl", "Ta domena jest na sprzedaż, zapraszamy do kontaktu.", "parked_domain"),
        ("tr", "Bu sayfayı görüntülemek için giriş yapmalısınız, lütfen.", "login_wall"),
    ],
)
def test_other_languages(language, text, reason):
    assert reason_of(f"Site {language}", text) == reason


def test_the_markup_and_redirects_are_evidence():
    teaser = "The bridge closes in May, the mayor said on Monday, and opens again when the cables are replaced."
    offer = "<div>Subscribe to continue reading.</div>"
    paid = '<script type="application/ld+json">{"isAccessibleForFree": false}</script>'
    assert reason_of("Bridge closes", teaser, offer) is None
    assert reason_of("Bridge closes", teaser, offer + paid) == "paywall"
    form = "Welcome to the club of the friends of old radios, founded in the year 1961 in a garage."
    assert reason_of("Log in", form) is None
    assert reason_of("Log in", form, "<input type=password>") == "login_wall"
    listing = f"The page you requested could not be found. {ARTICLE[:600]}"
    assert reason_of("Town News", listing) is None
    redirect = {"requested_url": "http://town.example/2009/story", "url": "http://town.example/"}
    assert reason_of("Town News", listing, **redirect) == "soft_404"
    assert reason_of("Town News", ARTICLE[:600], **redirect) is None


def test_the_title_of_the_html_counts_not_a_heading_of_the_page():
    html = html_of("Woman wins race", "She won by a minute.", "<h1>Log in</h1><input type=password>")
    assert find_rejection("Log in", "She won by a minute, in rain and wind, at the age of 61.", html.encode()) is None


def test_chinese_and_japanese_words_are_counted_by_characters():
    assert estimate_words("今日はねこが窓で寝ていた") == 6
    assert reason_of("日記", "今日はねこが窓で寝ていた。") is None


@pytest.mark.parametrize("html", ["<div>" * 200_000, "<" * 2_000_000, "<script>" * 300_000, "<title" * 300_000])
def test_hostile_markup_takes_linear_time(html):
    start = time.process_time()
    assert find_rejection(None, "", html.encode()) is None
    assert time.process_time() - start < 10


def test_the_stage_drops_them_by_reason_unless_told_to_keep_them(tmp_path):
    urls = {reason: f"http://{reason.replace('_', '-')}.example/page" for reason in REJECTED}
    data = [(urls[reason], html_of(*page).encode(), HTML_HEADERS) for reason, page in REJECTED.items()]
    data.append(("http://article.example/", html_of("Market", ARTICLE).encode(), HTML_HEADERS))
    (tmp_path / "crawl.warc.gz").write_bytes(warc_bytes(data)[0])
    # Of such short texts, `fast` keeps some and not others.
    options = {"extractor": "trafilatura"}
    summary = run([tmp_path / "crawl.warc.gz"], tmp_path / "out", **options)
    dropped = {row["url"]: row for row in rows(tmp_path / "out", "dropped")}
    assert {url: row["reason"] for url, row in dropped.items()} == {urls[reason]: reason for reason in REJECTED}
    assert dropped[urls["parked_domain"]]["detail"] == "This domain is for sale"
    assert summary.records_out == 1
    kept = run([tmp_path / "crawl.warc.gz"], tmp_path / "all", keep_non_documents=True, **options)
    assert not set(kept.dropped) & set(REJECTED)
    assert kept.records_out > 1


def test_the_requested_url_of_a_fetched_page_is_known(tmp_path):
    url = "http://town.example/2009/story"
    text = (
        "The page you requested could not be found. It may have been moved when we renewed this site last spring, or "
        "it was removed because the event that it announced is over. You can read the news of the town on this page, "
        "look for the office that you need in the list of offices, or call the town hall, which is open from Monday to "
        "Friday."
    )
    page = html_of("Town News", text).encode()
    data, offsets = warc_bytes([(url, page, HTML_HEADERS), (url + "2", html_of("A", ARTICLE).encode(), HTML_HEADERS)])
    with shards.write_shard(str(tmp_path / "fetch"), "pages-00000.parquet", PAGE_SCHEMA) as shard:
        for name, offset in zip((url, url + "2"), offsets, strict=True):
            row = page_row(name, "ok", len(page), "pages-00000.warc.gz", offset)
            shard.write({**row, "final_url": "http://town.example/"})
    warc = shards.write_file(str(tmp_path / "fetch"), "pages-00000.warc.gz", data)
    write_stage(tmp_path / "fetch", "fetch", [shard.entry, warc], 2)
    assert dict(run(tmp_path / "fetch", tmp_path / "out").dropped) == {"soft_404": 1}
