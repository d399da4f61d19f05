"""The style of the overlap page, upon that of the report card, and the script that sorts its tables."""

from __future__ import annotations

from pipelines.reports.tokenizer_card_style import STYLE as _CARD_STYLE

STYLE = (
    _CARD_STYLE
    + """
:root { --bar: #b9d2fa; --mark: #ffe58a; --mark-ink: #1c1f24; --mark-line: #b08800; }
@media (prefers-color-scheme: dark) { :root { --bar: #2f5a92; --mark: #5c4a00; --mark-ink: #fff3c4;
  --mark-line: #d9b400; } }
html { scroll-padding-top: 1rem; }
h1, h2, h3, p, li, dd { overflow-wrap: anywhere; }
a { color: var(--ours); overflow-wrap: anywhere; }
:focus-visible { outline: 2px solid var(--ours); outline-offset: 2px; border-radius: 4px; }
section { margin-top: 2.6rem; }
section > h2 { margin-top: 0; }
.warning { margin: 1rem 0; }
.facts { display: grid; gap: .7rem 2rem; margin: 1.4rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.facts > div:last-child { grid-column: 1 / -1; }
.options, .ranges { margin: .2rem 0 0; padding: 0; list-style: none; }
.options { display: grid; gap: .15rem 2rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); }
.options li { font-size: .9rem; }
.ranges li { margin: .2rem 0; font-size: .9rem; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; margin: 1.4rem 0 -1.2rem; font-size: .9rem; }
.split { font-size: .8rem; font-weight: 600; vertical-align: .2em; border: 1px solid var(--line); border-radius: 1em;
  padding: .1em .7em; background: var(--chip); }
.share { font-size: 1.5rem; font-variant-numeric: tabular-nums; }
small { display: block; color: var(--soft); font-size: .75rem; }
td.bar { background: linear-gradient(to right, var(--bar) var(--share), transparent var(--share)) no-repeat
  .4rem 100% / calc(100% - .8rem) 4px; }
thead th { white-space: normal; }
thead th button { all: unset; box-sizing: border-box; cursor: pointer; width: 100%; text-align: inherit; }
thead th button:hover { color: var(--ink); text-decoration: underline; }
thead th button:focus-visible { outline: 2px solid var(--ours); outline-offset: 3px; border-radius: 2px; }
th[aria-sort=ascending] button::after { content: " ↑"; color: var(--ink); }
th[aria-sort=descending] button::after { content: " ↓"; color: var(--ink); }
.groups > * { border-bottom: 0; padding-bottom: 0; }
.groups th, .groups th:first-child { text-align: center; }
.groups th span { display: block; border-bottom: 1px solid var(--line); padding-bottom: .3rem; }
tfoot > tr > * { border-top: 1px solid var(--line); border-bottom: 0; color: var(--soft); }
tfoot th { text-align: left; font-weight: 400; white-space: normal; }
.main { font-size: .85rem; }
.main thead th { font-size: .76rem; }
.main th, .main td { padding: .35rem .38rem; }
.main th:first-child { padding-left: .7rem; }
.main small { white-space: normal; }
.main tbody th, .main tfoot th { min-width: 6.5rem; max-width: 12rem; overflow-wrap: anywhere; }
.main tbody th { font-weight: 600; }
.main td.text { min-width: 4.2rem; max-width: 6rem; overflow-wrap: break-word; }
.main tr:last-child > th:nth-child(2), .settings tr:last-child > th:nth-child(-n + 4), .texts thead th:last-child {
  text-align: left; }
.texts tbody th { min-width: 18rem; }
.settings tbody th { min-width: 4.5rem; }
.settings td.text { min-width: 0; }
.settings .this > * { background: var(--chip); font-weight: 650; }
.scroll:has(.figures) { width: fit-content; max-width: 100%; }
.figures tbody th { min-width: 9rem; }
.figures td { white-space: normal; }
.extreme { font-size: .7em; vertical-align: .15em; }
.threshold { stroke: var(--reference) !important; stroke-dasharray: 3 3; }
svg .beside { text-anchor: start; }
.examples { max-width: 54rem; margin: .7rem 0; }
.examples svg { min-width: 40rem; }
.plots.one { grid-template-columns: minmax(0, 46rem); }
.passages { padding-left: 1.7rem; margin: .4rem 0 0; }
.passages > li { margin: 1.1rem 0; }
.passages > li::marker { color: var(--soft); }
blockquote { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; max-width: 62rem; unicode-bidi: isolate; }
.start:has(+ .whole[open]) { display: none; }
mark { background: var(--mark); color: var(--mark-ink); border-bottom: 2px solid var(--mark-line); border-radius: 2px; }
summary { cursor: pointer; color: var(--ours); font-size: .875rem; width: fit-content; }
.source { color: var(--soft); font-size: .875rem; }
.more { margin-top: .6rem; }
@media (max-width: 700px) { main { padding: 1.5rem 1rem 3rem; }
  .main th:first-child { position: sticky; left: 0; background: var(--card); min-width: 7.2rem; max-width: 9rem; } }
@media print { :root { --mark: #fff; --mark-ink: #000; --bar: transparent; } html { font-size: 9.5pt; }
  body { font-size: 1rem; background: none; } main { max-width: none; padding: 0; }
  nav, .whole:not([open]), .whole > summary, .more[open] > summary { display: none; }
  .scroll { overflow: visible; border: 0; }
  .main, .main thead th { font-size: 6.8pt; } .main th, .main td { padding: .2rem .25rem; }
  .main td.text, .main tbody th { min-width: 0; } .examples svg, figure svg { min-width: 0; }
  .passages > li, h2, h3, table { break-inside: avoid; } h2, h3 { break-after: avoid; } }
"""
)

# A cell without a value stays last whichever way its column is sorted; rows that are equal keep their order.
SCRIPT = """
for (const button of document.querySelectorAll(".sortable thead button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, heads = head.parentElement, column = [...heads.children].indexOf(head);
    const body = head.closest("table").tBodies[0];
    const text = (line) => line.children[column].textContent;
    const data = (line) => line.children[column].dataset.value;
    const isNumber = [...body.rows].every((line) => data(line) !== undefined);
    const state = head.getAttribute("aria-sort");
    const rising = state === "descending" || (state === "none" && !isNumber);
    for (const other of heads.children) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", rising ? "ascending" : "descending");
    const compare = (a, b) => {
      if (!isNumber) return (rising ? 1 : -1) * text(a).localeCompare(text(b), "en", { numeric: true });
      if (data(a) === "" || data(b) === "") return (data(a) === "") - (data(b) === "");
      return (rising ? 1 : -1) * (Number(data(a)) - Number(data(b)));
    };
    body.append(...[...body.rows].sort(compare));
  });
}
"""
