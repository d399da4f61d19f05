"""Compares `canonical_url` with courlan, w3lib, url-normalize and two bindings of ada on URLs of real submissions.

    python benchmarks/bench_urls.py [DUMP] [--repeats N]

DUMP contains submissions as NDJSON, optionally compressed (default: reddit/submissions-2013.ndjson.zst in
$WEBTEXT_TEST_DATA). For each function, with its defaults: URLs per second of CPU time (median of N rounds, in which the
functions alternate), the number of URLs for which it returns None or raises, of results that change when it is applied
again, of distinct URLs before and after, and the rules of webtext that it follows: whether two spellings of one URL
become equal, and two URLs stay distinct.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import logging
import os
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pipelines.algorithms.web.urls import canonical_url
from pipelines.storage.compression import open_decompressed

Canonical = Callable[[str], str | None]


class Rule(NamedTuple):
    name: str
    one: str
    other: str
    equal: bool = True


RULES = (
    Rule("entity", "http://e.com/?a=1&amp;b=2", "http://e.com/?a=1&b=2"),
    Rule("entity escaped twice", "http://e.com/?a=1&amp;amp;b=2", "http://e.com/?a=1&b=2"),
    Rule("%7e is ~", "http://e.com/%7euser", "http://e.com/~user"),
    Rule("hex digits' case", "http://e.com/%c3%a9", "http://e.com/%C3%A9"),
    Rule("unencoded character", "http://e.com/\u00e9", "http://e.com/%C3%A9"),
    Rule("%2F is not a slash", "http://e.com/a%2Fb", "http://e.com/a/b", equal=False),
    Rule("host case", "http://E.COM/", "http://e.com/"),
    Rule("trailing dot", "http://e.com./", "http://e.com/"),
    Rule("IDN is Punycode", "http://b\u00fccher.de/", "http://xn--bcher-kva.de/"),
    Rule("stra\u00dfe is not strasse", "http://stra\u00dfe.de/", "http://strasse.de/", equal=False),
    Rule("default port", "https://e.com:443/", "https://e.com/"),
    Rule("credentials", "http://user:pw@e.com/", "http://e.com/"),
    Rule("empty path", "http://e.com", "http://e.com/"),
    Rule("dot segments", "http://e.com/a/./b/../c", "http://e.com/a/c"),
    Rule("a final slash names another page", "http://e.com/a/", "http://e.com/a", equal=False),
    Rule("backslash", "http://e.com\\a", "http://e.com/a"),
    Rule("surrounding white space", " http://e.com/a\n", "http://e.com/a"),
    Rule("tracking", "http://e.com/?utm_source=x&id=7&fbclid=y", "http://e.com/?id=7"),
    Rule("order of parameters", "http://e.com/?b=1&a=2", "http://e.com/?a=2&b=1", equal=False),
    Rule("+ is not %2B", "http://e.com/?q=a+b", "http://e.com/?q=a%2Bb", equal=False),
    Rule("fragment", "http://e.com/a#top", "http://e.com/a"),
    Rule("#! names a page", "http://e.com/#!/a", "http://e.com/#!/b", equal=False),
    Rule("www. may be another site", "http://www.e.com/", "http://e.com/", equal=False),
    Rule("markup is not a URL", "http://[IMG]http://i.com/9.jpg", ""),
    Rule("lone surrogate", "http://e.com/\ud83d", "http://e.com/\ufffd"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = Path(os.environ.get("WEBTEXT_TEST_DATA", ""))
    parser.add_argument("dump", type=Path, nargs="?", default=data / "reddit" / "submissions-2013.ndjson.zst")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if not options.dump.is_file():
        print(f"skipped: {options.dump} does not exist; name a dump, or set WEBTEXT_TEST_DATA")
        return
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    with open_decompressed(str(options.dump)) as stream:
        urls = [record["url"] for record in map(json.loads, stream) if record["url"]]
    print(f"{len(urls)} URLs, {len(set(urls))} distinct")
    compared = installed_functions()
    rounds = [{name: urls_per_s(function, urls) for name, function in compared.items()} for _ in range(options.repeats)]
    for name, function in compared.items():
        print(f"\n{name}: {statistics.median(rates[name] for rates in rounds):,.0f} URLs/s")
        report_results(function, urls)
        report_rules(function)


def installed_functions() -> dict[str, Canonical]:
    """Return the functions by name; print the packages that are not installed."""
    functions: dict[str, Canonical] = {"webtext": canonical_url}
    for package, modules, make in (
        ("courlan", ["courlan"], courlan_functions),
        ("w3lib", ["w3lib.url"], lambda w3lib: {"canonicalize_url": w3lib.canonicalize_url}),
        ("url-normalize", ["url_normalize"], lambda library: {"url_normalize": library.url_normalize}),
        ("can_ada", ["can_ada"], lambda can_ada: {"parse().href": lambda url: can_ada.parse(url).href}),
        ("ada-url", ["ada_url"], lambda ada_url: {"normalize_url": ada_url.normalize_url}),
    ):
        try:
            peers = make(*map(importlib.import_module, modules))
        except ImportError:
            print(f"skipped: {package} is not installed")
            continue
        version = importlib.metadata.version(package)
        functions |= {f"{package} {version} {name}": function for name, function in peers.items()}
    return functions


def courlan_functions(courlan) -> dict[str, Canonical]:  # type: ignore[no-untyped-def]
    # `strict` would also drop parameters that are not known to select the page.
    return {"clean_url": courlan.clean_url, "normalize_url": courlan.normalize_url}


def report_results(function: Canonical, urls: list[str]) -> None:
    results = [outcome(function, url) for url in urls]
    errors = Counter(error for _, error in results if error)
    without_result = sum(result is None and not error for result, error in results)
    kept = {url: result for url, (result, _) in zip(urls, results, strict=True) if result is not None}
    changed = {url: result for url, result in kept.items() if outcome(function, result)[0] != result}
    print(
        f"  None for {without_result}, raises on {errors.total()} {dict(errors) or ''}; "
        f"{len(changed)} change when applied again;"
    )
    print(f"  {len(kept)} distinct URLs become {len(set(kept.values()))}")
    for url, result in list(changed.items())[:2]:
        steps = (url, result, outcome(function, result)[0])
        print("    changes: " + "\n      ".join(ascii(step)[:100] for step in steps))


def report_rules(function: Canonical) -> None:
    broken = [rule for rule in RULES if not follows(function, rule)]
    print(f"  follows {len(RULES) - len(broken)} of {len(RULES)} rules{', not:' if broken else ''}")
    for rule in broken:
        print(f"    {rule.name}: " + "; ".join(shown(function, url) for url in (rule.one, rule.other) if url))


def follows(function: Canonical, rule: Rule) -> bool:
    one, other = outcome(function, rule.one)[0], outcome(function, rule.other)[0]
    if not rule.other:
        return one is None
    return one is not None and other is not None and (one == other) is rule.equal


def shown(function: Canonical, url: str) -> str:
    result, error = outcome(function, url)
    return f"{url!a} -> {error or ascii(result)}"


def outcome(function: Canonical, url: str) -> tuple[str | None, str]:
    """Return the result, and the name of the exception if one was raised."""
    try:
        return function(url), ""
    except Exception as error:  # noqa: BLE001 - any exception is counted
        return None, type(error).__name__


def urls_per_s(function: Canonical, urls: list[str]) -> float:
    start = time.process_time()
    for url in urls:
        try:
            function(url)
        except Exception:  # noqa: BLE001 - counted by report_results
            continue
    return len(urls) / (time.process_time() - start)


if __name__ == "__main__":
    main()
