"""Dates as web pages write them: ISO 8601, with digits in the order of a language, or with the name of a month."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import re

# English, German, French, Spanish, Italian, Portuguese, Dutch, Polish, Russian and Turkish, by their first letters.
_MONTHS = (
    "jan|ene|gen|sty|янв|oca feb|fév|fev|lut|фев|şub mar|mär|mrz|maa|mrt|мар apr|avr|abr|kwi|апр|nis "
    "may|mai|mei|mag|maj|мая jun|juin|giu|cze|июн|haz jul|juil|lug|lip|июл|tem aug|aoû|ago|sie|авг|ağu "
    "sep|set|wrz|сен|eyl oct|okt|ott|out|paź|окт|eki nov|lis|ноя|kas dec|dez|déc|dic|gru|дек|ara"
)
_MONTH_NUMBERS = {name: number for number, names in enumerate(_MONTHS.split(), 1) for name in names.split("|")}
_MONTH = rf"(?P<name>{'|'.join(_MONTH_NUMBERS)})[^\W\d]*\.?"
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
            month, day = int(groups.get("month") or _MONTH_NUMBERS[groups["name"]]), int(groups["day"])
            if month > 12:
                month, day = day, month
            with contextlib.suppress(ValueError):
                date = dt.date(int(groups["year"]), month, day)
                if date.year >= _FIRST_YEAR:
                    return date.isoformat()
    return None
