// A table of which one page is shown: its height is bounded, whatever the number of rows. A heading sorts; without one
// the order is that of the rows. Names that are not known are last in both directions.
// A column: head, value (to sort by), cell (text or an element), and if wanted small (below it), bad, title, left.
"use strict";

function drawList(table, nav, {columns, rows, keys, noun, order, redraw, mark}) {
  const most = Number(view.rows) || 25, pages = Math.max(1, Math.ceil(rows.length / most));
  const page = Math.min(pages, Math.max(1, Math.floor(Number(view[keys.page])) || 1));
  const column = columns.find(one => one.head === view[keys.sort]), sorted = sortedBy(column, view[keys.up] === "1", rows);
  const focused = table.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  drawHead(table, columns, keys, redraw);
  table.tBodies[0].replaceChildren(...sorted.slice((page - 1) * most, page * most).map(row => drawRow(row, columns, mark)));
  if (focused !== undefined) [...table.querySelectorAll("[data-key]")].find(one => one.dataset.key === focused)?.focus();
  drawPages(nav, {page, pages, most, count: rows.length, noun, order: column ? `by ${column.head}` : order, keys, redraw});
  return sorted;
}

function sortedBy(column, up, rows) {
  if (!column) return rows;
  const missing = value => value === null || value === undefined || value === "";
  const compare = (a, b) => typeof a === "string" ? b.localeCompare(a, "en", {numeric: true}) : b - a;
  return rows.map(row => [column.value(row), row]).sort(([a], [b]) => {
    if (missing(a) || missing(b)) return missing(a) - missing(b);
    return up ? compare(b, a) : compare(a, b);
  }).map(([, row]) => row);
}

// Pressed once a heading sorts, twice the other way round, and then the order is the usual one again. Names begin with A.
function drawHead(table, columns, keys, redraw) {
  const made = element("tr");
  for (const {head, named, left} of columns) {
    const cell = element("th", {scope: "col", ...(left ? {class: "left"} : {})}), button = element("button", {type: "button", "data-key": `head ${head}`}, head);
    const chosen = view[keys.sort] === head, up = view[keys.up] === "1";
    if (chosen) cell.setAttribute("aria-sort", up ? "ascending" : "descending");
    button.addEventListener("click", () => {
      const first = named ? "1" : "", next = !chosen ? {sort: head, up: first} : view[keys.up] === first ? {sort: head, up: first ? "" : "1"} : {sort: "", up: ""};
      show({[keys.sort]: next.sort, [keys.up]: next.up, [keys.page]: "1"});
      redraw();
    });
    cell.append(button);
    made.append(cell);
  }
  table.tHead.replaceChildren(made);
}

function drawRow(row, columns, mark) {
  const made = element("tr");
  columns.forEach(({cell, small, bad, title, left}, i) => {
    const place = element(i ? "td" : "th", i ? {} : {scope: "row"}), content = cell(row), below = small?.(row);
    place.append(content);
    if (below) place.append(element("small", {}, below));
    place.classList.toggle("left", Boolean(left));
    place.classList.toggle("bad", Boolean(bad?.(row)));
    if (title?.(row)) place.title = title(row);
    made.append(place);
  });
  mark?.(made, row);
  return made;
}

function drawPages(nav, {page, pages, most, count: all, noun, order, keys, redraw}) {
  const said = `${order}: ${all ? `${count((page - 1) * most + 1)} to ${count(Math.min(all, page * most))} of ` : ""}${count(all)} ${all === 1 ? noun.replace(/s$/, "") : noun}`;
  const to = (text, next, where) => {
    const button = element("button", {type: "button", "data-key": where}, text);
    button.disabled = next < 1 || next > pages || next === page;
    button.addEventListener("click", () => { show({[keys.page]: String(next)}); redraw(); });
    return button;
  };
  const focused = nav.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  nav.replaceChildren(element("span", {}, said));
  if (pages > 1) nav.append(to("first", 1, "first"), to("previous", page - 1, "previous"), to("next", page + 1, "next"), to("last", pages, "last"));
  if (focused) [...nav.children].find(one => one.dataset.key === focused)?.focus();
}

// Rows whose name holds all words.
function withWords(rows, words, name) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter(row => { const text = name(row).toLowerCase(); return wanted.every(word => text.includes(word)); });
}
