"""The license of a page: names of URLs and texts, places, and disagreements."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipelines.algorithms.blocks.page import parse_html
from pipelines.algorithms.web.metadata import read_declared
from pipelines.stages.extract.licenses import find_license, name_license

NAMES = [
    ("https://creativecommons.org/licenses/by/4.0/", "cc-by-4.0"),
    ("http://creativecommons.org/licenses/by/4.0", "cc-by-4.0"),
    ("https://creativecommons.org/licenses/by/4.0/deed.en", "cc-by-4.0"),
    ("https://creativecommons.org/licenses/by-sa/4.0/legalcode.de", "cc-by-sa-4.0"),
    ("https://creativecommons.org/licenses/by-nc-sa/3.0/us/", "cc-by-nc-sa-3.0-us"),
    ("https://creativecommons.org/licenses/by-nc-sa/3.0/us/deed.en_US", "cc-by-nc-sa-3.0-us"),
    ("https://creativecommons.org/licenses/by/3.0/igo/", "cc-by-3.0-igo"),
    ("//creativecommons.org/licenses/by-nd/2.5/scotland/", "cc-by-nd-2.5-scotland"),
    ("HTTPS://WWW.CREATIVECOMMONS.ORG/LICENSES/BY-NC-ND/4.0/", "cc-by-nc-nd-4.0"),
    ("https://creativecommons.org/licenses/by-nc/2.0/?ref=chooser", "cc-by-nc-2.0"),
    ("https://creativecommons.org/licenses/nc-sa/1.0/", "cc-nc-sa-1.0"),
    ("https://creativecommons.org/licenses/by/", "cc-by"),
    ("https://creativecommons.org/publicdomain/zero/1.0/", "cc0-1.0"),
    ("https://creativecommons.org/publicdomain/mark/1.0/deed.nl", "public-domain"),
    ("https://creativecommons.org/licenses/publicdomain/", "public-domain"),
    ("https://creativecommons.org/licenses/GPL/2.0/", "gpl-2.0"),
    ("https://creativecommons.org/licenses/sampling+/1.0/", None),
    ("https://creativecommons.org/licenses/", None),
    ("https://creativecommons.org/about/cclicenses/", None),
    ("https://www.gnu.org/licenses/fdl-1.3.html", "gfdl-1.3"),
    ("https://www.gnu.org/copyleft/fdl.html", "gfdl"),
    ("https://www.gnu.org/licenses/agpl-3.0.html", "agpl-3.0"),
    ("https://www.apache.org/licenses/LICENSE-2.0.html", "apache-2.0"),
    ("https://opensource.org/licenses/MIT", "mit"),
    ("https://opensource.org/license/bsd-3-clause/", "bsd-3-clause"),
    ("https://spdx.org/licenses/CC-BY-4.0.html", "cc-by-4.0"),
    ("https://www.nationalarchives.gov.uk/doc/open-government-licence/version/3/", "ogl-uk-3"),
    ("https://opendatacommons.org/licenses/odbl/1-0/", "odbl-1.0"),
    ("https://example.com/terms", None),
    ("CC BY-SA 4.0", "cc-by-sa-4.0"),
    ("CC-BY-NC-ND-4.0", "cc-by-nc-nd-4.0"),
    ("cc by", "cc-by"),
    ("CC0", "cc0"),
    ("CC0 1.0 Universal", "cc0-1.0"),
    ("Creative Commons Attribution-ShareAlike 3.0 Unported License", "cc-by-sa-3.0"),
    ("Creative Commons Attribution-NonCommercial-NoDerivatives 4.0 International", "cc-by-nc-nd-4.0"),
    ("Attribution-NonCommercial-NoDerivs 2.0 Generic", "cc-by-nc-nd-2.0"),
    ("Attribution 4.0 International", "cc-by-4.0"),
    ("Licensed under the Creative Commons Attribution License v3.0", "cc-by-3.0"),
    ("This work is in the public domain.", "public-domain"),
    ("GFDL 1.2", "gfdl-1.2"),
    ("Attribution required", None),
    ("By John Smith, 2014. All rights reserved.", None),
    ("© 2020 CC Media", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "name"), NAMES)
def test_names_of_urls_and_texts(text: str, name: str | None) -> None:
    assert name_license(text) == name


BY, SA, NC = (f"https://creativecommons.org/licenses/{name}/4.0/" for name in ("by", "by-sa", "by-nc"))


def _ld(*items: Any) -> str:
    return "".join(f'<script type="application/ld+json">{json.dumps(item)}</script>' for item in items)


PAGES = [
    # Each place alone.
    (f'<link rel="license" href="{BY}">', "cc-by-4.0", BY, "link"),
    (f'<link href="{BY}" rel="alternate LICENSE">', "cc-by-4.0", BY, "link"),
    (f'<meta name="license" content="{BY}">', "cc-by-4.0", BY, "meta"),
    ('<meta name="DC.rights" content="CC BY 4.0">', "cc-by-4.0", None, "meta"),
    (f'<meta property="og:license" content="{BY}">', "cc-by-4.0", BY, "meta"),
    (f'<meta name="dcterms.license" content="See {BY} for terms">', "cc-by-4.0", BY, "meta"),
    (_ld({"@type": "Article", "license": BY}), "cc-by-4.0", BY, "json-ld"),
    (_ld({"@graph": [{"@type": ["WebPage"], "license": {"@id": BY}}]}), "cc-by-4.0", BY, "json-ld"),
    (_ld({"@type": "Article", "license": {"@type": "Thing", "name": "CC BY 4.0"}}), "cc-by-4.0", None, "json-ld"),
    (f'<p>This is <a rel="license" href="{BY}">free</a>.', "cc-by-4.0", BY, "a"),
    (f"<p>This is <a href={BY} rel='license noopener'>free</a>.", "cc-by-4.0", BY, "a"),
    (f'<footer><p><a href="{BY}">CC BY</a></p></footer>', "cc-by-4.0", BY, "footer"),
    (f'<div id="site-Footer"><a rel="license" href="{BY}">CC BY</a></div>', "cc-by-4.0", BY, "footer"),
    # A relative address, and one without scheme.
    ('<a rel="license" href="/license">ours</a>', None, "http://a.org/license", "a"),
    ('<footer><a href="//creativecommons.org/publicdomain/zero/1.0/">CC0</a></footer>', "cc0-1.0",
     "http://creativecommons.org/publicdomain/zero/1.0/", "footer"),
    # A link elsewhere, or in a figure, may be about something else.
    (f'<p>Photo: Jane, <a href="{BY}">CC BY</a>', None, BY, "body"),
    (f'<figure><img><figcaption>Jane, <a rel="license" href="{BY}">CC BY</a></figcaption></figure>', None, BY, "body"),
    (_ld({"@type": "ImageObject", "license": BY}), None, None, None),
    (_ld({"@type": "Article", "image": {"@type": "ImageObject", "license": BY}}), None, None, None),
    (f'<a rel="license" href="{SA}">x</a><p>Photo: <a href="{NC}">x</a>', "cc-by-sa-4.0", SA, "a; body"),
    # Several places: the most trusted first; another version is no disagreement, another license is.
    (f'<meta name="license" content="{SA}"><footer><a href="{SA}">x</a></footer>', "cc-by-sa-4.0", SA, "meta; footer"),
    (f'<link rel="license" href="{SA}"><a rel="license" href="{SA.replace("4.0", "3.0")}">x</a>', "cc-by-sa-4.0", SA,
     "link; a"),
    (f'<link rel="license" href="{SA}"><footer><a href="{NC}">x</a></footer>', None, SA, "link; footer"),
    ('<meta name="rights" content="© 2020 A. All rights reserved."><a rel="license" href="' + BY + '">x</a>', None, BY,
     "meta; a"),
    (_ld({"@type": "Article", "license": [BY, NC]}), None, BY, "json-ld"),
    # Nothing.
    ("<p>text", None, None, None),
    (f"<p>{BY}", None, None, None),
    ('<a href="https://creativecommons.org/">x</a><a href="/creators">y</a>', None, None, None),
    ('<footer><a href="/license-agreement">License</a></footer>', None, None, None),
    ('<link rel="license"><meta name="license"><a rel=license>x</a><a rel=license href="">x</a>', None, None, None),
    (_ld({"@type": "Article", "license": 7}, {"@type": "Article", "license": None}), None, None, None),
    ('<a rel="license" href="https://[creativecommons.org/licenses/by/4.0/">x</a>', None, None, None),
]  # fmt: skip


@pytest.mark.parametrize(("html", "name", "url", "place"), PAGES)
def test_places_of_licenses(html: str, name: str | None, url: str | None, place: str | None) -> None:
    declared = read_declared(parse_html(f"<!DOCTYPE html><title>t</title>{html}".encode()).tree)
    expected = {"license": name, "license_url": url, "license_location": place}
    assert find_license(declared, "http://a.org/page") == expected


def test_a_page_with_many_links_is_read_in_bounded_time() -> None:
    nested = "<div>" * 200 + f'<a rel="license" href="{BY}">x</a>' * 20_000
    declared = read_declared(parse_html(f"<title>t</title>{nested}".encode()).tree)
    assert find_license(declared, None) == {"license": "cc-by-4.0", "license_url": BY, "license_location": "a"}


def test_only_links_to_licenses_keep_their_address() -> None:
    html = b'<a href="/x">x</a><a class="y" href="https://example.org/">y</a><a HREF="/licence">z</a>'
    assert (parse_html(html).tree.html or "").count("href") == 0 + 1
