"""The style of the tokenizer's report card."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ink: #1c1f24; --soft: #5b6470; --paper: #fbfbfa; --card: #ffffff; --line: #dfe2e6;
  --ours: #1f6feb; --reference: #d9822b; --chip: #eef1f5; --good: #1a7f37; --bad: #c62828; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #9aa4b0; --paper: #14171b; --card: #1b1f24;
  --line: #323840; --ours: #6ea8fe; --reference: #f0a35c; --chip: #272d34; --good: #57c26e; --bad: #ff7b72; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 2.5rem 1.5rem 5rem; }
h1 { font-size: 1.9rem; margin: 0 0 .5rem; letter-spacing: -.01em; }
h2 { font-size: 1.3rem; margin: 2.6rem 0 .3rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
p { margin: .4rem 0; }
.lead, .note, figcaption { color: var(--soft); }
.lead { max-width: 46rem; }
.note, figcaption { font-size: .875rem; max-width: 56rem; }
figcaption strong { color: var(--ink); font-size: 1rem; display: block; }
.warning { border-left: 4px solid var(--reference); padding: .3rem .9rem; background: var(--card); max-width: 56rem; }
.bad { border-left-color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr)); gap: .9rem;
  margin: 1.5rem 0; }
.tiles > div, figure { background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
.tiles > div { padding: .8rem 1rem; }
dt { color: var(--soft); font-size: .85rem; }
dd { margin: 0; }
dd strong { font-size: 1.6rem; font-weight: 650; font-variant-numeric: tabular-nums; }
dd span { display: block; color: var(--soft); font-size: .85rem; }
.good strong { color: var(--good); }
.wrong strong { color: var(--bad); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: .9rem;
  margin: .9rem 0; }
figure { margin: 0; padding: 1rem 1.1rem; display: flex; flex-direction: column; gap: .5rem; overflow-x: auto; }
figure svg { margin-top: auto; min-width: 27rem; }
figure.wide { grid-column: 1 / -1; }
svg { width: 100%; height: auto; display: block; }
.wide svg { max-width: 860px; }
svg line { stroke: var(--line); stroke-width: 1; }
svg .floor { stroke: var(--soft); }
svg text { fill: var(--ink); font: 11px system-ui, sans-serif; text-anchor: middle;
  font-variant-numeric: tabular-nums; }
svg .tick { fill: var(--soft); }
svg .side, svg .label { text-anchor: end; }
svg .label { font-size: 12px; }
svg .value { text-anchor: start; font-size: 10.5px; }
polyline { fill: none; stroke-width: 2; stroke-linejoin: round; }
polyline.ours { stroke: var(--ours); }
polyline.reference { stroke: var(--reference); stroke-dasharray: 5 3; }
rect.ours, circle.ours { fill: var(--ours); }
rect.reference, circle.reference { fill: var(--reference); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: 0; padding: 0;
  font-size: .85rem; }
.legend li::before { content: ""; display: inline-block; width: .8em; height: .8em; border-radius: 2px;
  margin-right: .4em; vertical-align: -.06em; }
.legend .ours::before { background: var(--ours); }
.legend .reference::before { background: var(--reference); }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; background: var(--card);
  margin: .6rem 0;
  position: relative; }
.tall { max-height: 31rem; overflow-y: auto; }
.tall thead th { position: sticky; top: 0; background: var(--card); box-shadow: inset 0 -1px var(--line); }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line);
  vertical-align: top; }
tbody tr:last-child > * { border-bottom: 0; }
thead th { color: var(--soft); font-size: .8rem; font-weight: 600; vertical-align: bottom; }
th:first-child, td.text { text-align: left; }
tbody th { font-weight: 400; white-space: normal; min-width: 14rem; }
td.text { white-space: normal; min-width: 16rem; }
.missed { color: var(--bad); font-weight: 600; }
code { font: .92em ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; unicode-bidi: isolate;
  background: var(--chip); border-radius: 4px; padding: .08em .3em; white-space: pre-wrap; }
@media print { .tall { max-height: none; } figure, tr { break-inside: avoid; } }
"""
