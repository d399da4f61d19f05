"""The style and the script of the overlap page."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ink: #1c1f24; --soft: #5b6470; --paper: #fbfbfa; --card: #ffffff; --line: #dfe2e6;
  --accent: #1f6feb; --bar: #cfe0fb; --mark: #ffe58a; --mark-ink: #1c1f24; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #9aa4b0; --paper: #14171b; --card: #1b1f24;
  --line: #323840; --accent: #7db1ff; --bar: #24446f; --mark: #6b5500; --mark-ink: #fff3c4; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, "Segoe UI", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 2.5rem 1.5rem 5rem; }
h1 { font-size: 1.9rem; margin: 0 0 .5rem; letter-spacing: -.01em; }
h2 { font-size: 1.35rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
p { margin: .4rem 0; }
a { color: var(--accent); overflow-wrap: anywhere; }
code { font: .9em ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.lead { max-width: 46rem; color: var(--soft); }
.note, figcaption, .source { color: var(--soft); font-size: .875rem; }
.note { max-width: 52rem; }
dl { display: flex; flex-wrap: wrap; gap: .6rem 2.2rem; margin: 1.2rem 0 1.8rem; }
dt { color: var(--soft); font-size: .8rem; }
dd { margin: 0; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; background: var(--card); }
table { border-collapse: collapse; width: 100%; font-size: .93rem; font-variant-numeric: tabular-nums; }
th, td { padding: .5rem .65rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
tbody tr:last-child > * { border-bottom: 0; }
th:first-child { text-align: left; }
tbody th { font-weight: 600; }
td[style] { background: linear-gradient(to right, var(--bar) var(--share), transparent var(--share)) no-repeat
  0 calc(100% - .3rem) / 100% 3px; }
thead th { vertical-align: bottom; font-size: .8rem; padding: 0; }
thead button { all: unset; cursor: pointer; display: block; padding: .5rem .65rem; color: var(--soft);
  font-weight: 600; }
thead button:focus-visible { outline: 2px solid var(--accent); outline-offset: -2px; border-radius: 4px; }
thead button::after { content: ""; display: inline-block; width: .7em; text-align: right; }
thead th:first-child { min-width: 9rem; }
th[aria-sort=ascending] button::after { content: "↑"; }
th[aria-sort=descending] button::after { content: "↓"; }
section { margin-top: 2rem; padding: 1.4rem 1.6rem; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; }
.share { font-size: 1.5rem; font-variant-numeric: tabular-nums; }
figure { margin: .6rem 0; }
svg { width: 100%; max-width: 720px; height: auto; display: block; }
svg rect { fill: var(--accent); }
svg line { stroke: var(--line); }
svg text { fill: var(--ink); font: 11px system-ui, sans-serif; text-anchor: middle; }
svg .tick { fill: var(--soft); }
ol { padding-left: 1.6rem; margin: .4rem 0 0; }
li { margin: 1rem 0; }
li::marker { color: var(--soft); }
blockquote { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; max-width: 62rem; }
mark { background: var(--mark); color: var(--mark-ink); border-radius: 3px; padding: .05em .1em; }
.source span { font-weight: 600; }
@media print { section { break-inside: avoid; } }
"""

SCRIPT = """
for (const button of document.querySelectorAll("thead button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, row = head.parentElement, column = [...row.children].indexOf(head);
    const rising = head.getAttribute("aria-sort") === "descending" || (column === 0 && head.ariaSort === "none");
    for (const other of row.children) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", rising ? "ascending" : "descending");
    const value = (line) => {
      const cell = line.children[column];
      return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
    };
    const compare = (a, b) => typeof a === "number" ? a - b : a.localeCompare(b);
    const body = row.closest("table").tBodies[0];
    body.append(...[...body.rows].sort((a, b) => (rising ? 1 : -1) * compare(value(a), value(b))));
  });
}
"""
