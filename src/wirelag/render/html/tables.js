// Tables of a page: a heading sorts by its column, and a field above a long table keeps the rows that hold its words.
// Law: a row is never lost. Sorting is stable; a third press restores the order of the page, which is the report's own.
"use strict";
const LONG = 8; // rows from which a table gets a field
const number = /^-?[\d,]*\.?\d+%?$/;

function valueOf(row, column) {
  const cell = row.cells[column];
  const exact = cell.querySelector("data");
  if (exact) return Number(exact.value);
  const text = cell.textContent.trim();
  return number.test(text) ? Number(text.replace(/[,%]/g, "")) : text;
}

// Numbers before texts, and "-" and empty cells last in both directions.
function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a === "number") return -1;
  return typeof b === "number" ? 1 : a.localeCompare(b, "en", { numeric: true });
}

const empty = (value) => value === "" || value === "-";

function sortRows(table, original, column, direction) {
  const body = table.tBodies[0];
  const rows = direction === "none" ? original : [...original].sort((one, other) => {
    const [a, b] = [valueOf(one, column), valueOf(other, column)];
    if (empty(a) || empty(b)) return empty(a) - empty(b);
    return direction === "ascending" ? compare(a, b) : compare(b, a);
  });
  body.append(...rows);
}

function makeSortable(table) {
  const original = [...table.tBodies[0].rows];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    if (!head.textContent.trim()) return;
    const button = document.createElement("button");
    button.type = "button";
    button.title = "sort by this column";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort") ?? "none";
      const next = { none: "descending", descending: "ascending", ascending: "none" }[now];
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      if (next !== "none") head.setAttribute("aria-sort", next);
      sortRows(table, original, column, next);
    });
  });
}

function makeSearchable(table) {
  const rows = [...table.tBodies[0].rows];
  const label = document.createElement("label");
  const field = document.createElement("input");
  const count = document.createElement("span");
  label.className = "find";
  field.type = "search";
  count.setAttribute("role", "status");
  label.append("Show rows with ", field, " ", count);
  table.parentElement.before(label);
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    count.textContent = words.length ? `${shown} of ${rows.length}` : "";
  });
}

for (const table of document.querySelectorAll("main table")) {
  const rows = table.tBodies[0]?.rows.length ?? 0;
  if (rows > 1 && table.tHead) makeSortable(table);
  if (rows >= LONG) makeSearchable(table);
}
