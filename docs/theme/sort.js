/* A click on a column title sorts a table: by the first number of each cell, by text where there is none. */
const number = text => parseFloat((text.replaceAll(",", "").replace("−", "-").match(/-?\d+(\.\d+)?/) ?? [])[0]);

function sort(head) {
  const body = head.closest("table").tBodies[0], column = head.cellIndex;
  const falling = head.getAttribute("aria-sort") === "ascending";
  const order = (a, b) => {
    const [x, y] = [a, b].map(row => (row.cells[column]?.textContent ?? "").trim());
    const [n, m] = [number(x), number(y)];
    if (column > 0 && isNaN(n) !== isNaN(m)) return isNaN(n) - isNaN(m);  // without a number: last
    const less = column === 0 || isNaN(n) ? x.localeCompare(y, "en", {numeric: true}) : n - m;
    return falling ? -less : less;
  };
  body.append(...[...body.rows].sort(order));
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", falling ? "descending" : "ascending");
}

document.addEventListener("click", event => {
  const head = event.target.closest(".md-typeset table:not([class]) th");
  if (head) sort(head);
});
