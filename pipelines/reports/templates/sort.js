// Cells without a value stay last in both directions; equal rows keep their order.
for (const button of document.querySelectorAll(".sortable thead button")) {
  button.addEventListener("click", () => {
    const heading = button.parentElement, headings = heading.parentElement;
    const column = [...headings.children].indexOf(heading), body = heading.closest("table").tBodies[0];
    const text = (row) => row.children[column].textContent;
    const data = (row) => row.children[column].dataset.value;
    const isNumber = [...body.rows].every((row) => data(row) !== undefined);
    const state = heading.getAttribute("aria-sort");
    const ascending = state === "descending" || (state === "none" && !isNumber);
    for (const other of headings.children) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const compare = (a, b) => {
      if (!isNumber) return (ascending ? 1 : -1) * text(a).localeCompare(text(b), "en", { numeric: true });
      if (data(a) === "" || data(b) === "") return (data(a) === "") - (data(b) === "");
      return (ascending ? 1 : -1) * (Number(data(a)) - Number(data(b)));
    };
    body.append(...[...body.rows].sort(compare));
  });
}
