"""Dates as web pages write them: ISO 8601, with digits in the order of a language, or with the name of a month."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import re

# English, German, Dutch, French, Spanish, Italian, Portuguese, Polish, Russian and Turkish; abbreviations have at least
# three of the letters.
_MONTHS = (
    "january januar januari janvier enero gennaio janeiro stycznia января ocak",
    "february februar februari février fevrier febrero febbraio fevereiro lutego февраля şubat",
    "march märz mrz maart mrt mars marzo março marco marca марта mart",
    "april avril abril aprile kwietnia апреля nisan",
    "may mai mei mayo maggio maio maja мая mayıs",
    "june juni juin junio giugno junho czerwca июня haziran",
    "july juli juillet julio luglio julho lipca июля temmuz",
    "august augustus août aout agosto sierpnia августа ağustos",
    "september septembre septiembre settembre setembro września сентября eylül",
    "october oktober octobre octubre ottobre outubro października октября ekim",
    "november novembre noviembre novembro listopada ноября kasım",
    "december dezember décembre decembre diciembre dicembre dezembro grudnia декабря aralık",
)
_MONTH_NUMBERS = {
    name[:size]: number
    for number, names in enumerate(_MONTHS, 1)
    for name in names.split()
    for size in range(3, len(name) + 1)
} | {"sept": 9}
_MONTH = r"(?P<name>[^\W\d]{3,})\.?"
_DAY, _YEAR = r"(?<!\d)(?P<day>\d\d?)", r"(?P<year>(?:19|20)\d\d)"
_PATTERNS = [
    re.compile(pattern)
    for pattern in (
        rf"(?<!\d){_YEAR}(?P<sign>[-/.]?)(?P<month>0[1-9]|1[0-2])(?P=sign)(?P<day>\d\d)(?!\d)",
        rf"(?<!\d){_YEAR}(?:[-/.]|年\s?)(?P<month>0?[1-9]|1[0-2])(?:[-/.]|月\s?)(?P<day>\d\d?)(?!\d)",
        rf"{_DAY}\s?(?P<sign>[./|-])\s?(?P<month>\d\d?)\s?(?P=sign)\s?{_YEAR}(?!\d)",
        rf"{_DAY}(?:\.|º|st|nd|rd|th|er)?[\s-]+(?:de\s+)?{_MONTH},?[\s-]+(?:del?\s+)?{_YEAR}(?!\d)",
        rf"\b{_MONTH}\s+(?P<day>\d\d?)(?:st|nd|rd|th)?,?\s+{_YEAR}(?!\d)",
    )
]
_YEARS = re.compile(r"(?:19|20)\d\d")
_MAX_YEARS = 20
# The web is younger; 1970-01-01 stands for a missing time.
_FIRST_YEAR = 1991


def find_date(text: str) -> str | None:
    """Return the first valid date since 1991 in a text, YYYY-MM-DD; 5/6/2020 is read day first, 5/16/2020 month first.

    Only the text around the first 20 years is searched.
    """
    for year in itertools.islice(_YEARS.finditer(text), _MAX_YEARS):
        part = text[max(0, year.start() - 25) : year.end() + 8].lower()
        for match in filter(None, (pattern.search(part) for pattern in _PATTERNS)):
            groups = match.groupdict()
            month, day = int(groups.get("month") or _MONTH_NUMBERS.get(groups["name"], 0)), int(groups["day"])
            if month > 12:
                month, day = day, month
            with contextlib.suppress(ValueError):
                date = dt.date(int(groups["year"]), month, day)
                if date.year >= _FIRST_YEAR:
                    return date.isoformat()
    return None
