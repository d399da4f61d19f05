// The place and date of a page are shown, but not in its bytes: equal runs write equal reports.
if (location.protocol === "file:") {
  const path = decodeURIComponent(location.pathname), date = new Date(document.lastModified);
  const line = document.createElement("p"), pad = (number) => String(number).padStart(2, "0");
  const day = [date.getFullYear(), pad(date.getMonth() + 1), pad(date.getDate())].join("-");
  line.textContent = `Written ${day} ${pad(date.getHours())}:${pad(date.getMinutes())}: ${path}`;
  document.querySelector("footer").append(line);
}
// A passage is shown from its mark, with two lines before it.
const showMark = (box) => {
  const mark = box.querySelector("mark");
  if (mark) box.scrollTop += mark.getBoundingClientRect().top - box.getBoundingClientRect().top - 48;
};
document.querySelectorAll(".passages .blocks").forEach(showMark);
for (const more of document.querySelectorAll(".more")) {
  more.addEventListener("toggle", () => more.querySelectorAll(".passages .blocks").forEach(showMark));
}
// In a narrow window, the cells of some tables stand below each other, each after its heading.
for (const table of document.querySelectorAll(".stack")) {
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  for (const row of table.tBodies[0].rows) [...row.cells].slice(1).forEach((cell, index) => cell.dataset.label = names[index + 1]);
}
