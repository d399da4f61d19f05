// Parts of a page that take longer are loaded after it, or every `data-every` milliseconds unless the focus is there: a
// part with an id is that of the loaded page.
const load = async (part) => {
  const answer = await fetch(part.dataset.load);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const loaded = page.getElementById(part.id) ?? page.querySelector("main") ?? page.body;
  if (!part.contains(document.activeElement)) part.replaceChildren(...loaded.childNodes);
  part.removeAttribute("aria-busy");
  if (part.dataset.every) setTimeout(() => load(part), Number(part.dataset.every));
};
document.querySelectorAll("[data-load]").forEach(load);

// Rows of a list are links of class `row`; a button or link with `data-key` is pressed by that key,
// in an article if the focus is there.
const move = (step) => {
  const rows = [...document.querySelectorAll("a.row")], at = rows.indexOf(document.activeElement);
  rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + step, 0), rows.length - 1)]?.focus();
};
const KEYS = {
  j: () => move(1), k: () => move(-1),
  n: () => document.querySelector("a[rel=next]")?.click(), p: () => document.querySelector("a[rel=prev]")?.click(),
  "/": () => document.querySelector("main form :is(input:not([type=hidden]), select, textarea)")?.focus(),
  "?": () => document.querySelector("#keys").showModal(),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog[open]")) return;
  const keyed = [...document.querySelectorAll(`[data-key="${CSS.escape(event.key)}"]`)];
  const isReached = (target) => target.closest("article")?.contains(document.activeElement) ?? true;
  const action = KEYS[event.key] ?? (() => keyed.find(isReached)?.click());
  if (event.key in KEYS) event.preventDefault();
  action();
});
