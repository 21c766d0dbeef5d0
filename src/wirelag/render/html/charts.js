// Charts in a page: legend, axes, tooltips, zoom and keys. charts.py says what a chart holds, axes.js finds its marks,
// shapes.js draws its series, tips.js finds what to tell.
"use strict";

const GAP = 24;  // pixels between panels

// ---- a chart and its place in the page ----

function drawChart(place, data) {
  const chart = place.chart ??= begin(place);
  chart.data = data;
  drawLegend(chart);
  render(chart);
}

function begin(place) {
  const legend = element("div", {class: "legend"}), tip = element("div", {class: "tip", role: "status", hidden: ""});
  const keys = "Arrow keys read values, plus and minus zoom, Escape shows everything.";
  const svg = shape("svg", {class: "plot", tabindex: 0, role: "application"});
  svg.setAttribute("aria-label", `${place.getAttribute("aria-label") || "Chart"}. ${keys}`);
  place.replaceChildren(legend, svg, tip);
  const chart = {place, legend, svg, tip, hidden: new Set(), zoom: {y: {}}, pointer: null, stop: -1};
  new ResizeObserver(() => render(chart)).observe(svg);
  listenTo(chart);
  return chart;
}

// ---- legend ----

const isShown = (chart, series) => !chart.hidden.has(series.name);

function drawLegend(chart) {
  const every = chart.data.panels.flatMap(panel => panel.series).filter(one => one.name && !one.plain);
  const named = new Map(every.map(one => [one.name, one]));
  if (String([...named.keys()]) !== String(chart.names)) {  // else buttons stay, and keep the focus
    chart.names = [...named.keys()];
    chart.legend.replaceChildren(...[...named.values()].map(one => legendEntry(chart, one)), resetButton(chart));
  }
  for (const entry of chart.legend.children) {
    if (entry.dataset.name) entry.setAttribute("aria-pressed", !chart.hidden.has(entry.dataset.name));
    else entry.hidden = !isZoomed(chart);
  }
}

function legendEntry(chart, series) {
  const entry = element("button", {type: "button", title: "Hide or show; double-click shows this alone"});
  entry.dataset.name = series.name;
  entry.append(swatch(series), element("span", {}, series.name));
  entry.addEventListener("click", () => {
    if (!chart.hidden.delete(series.name)) chart.hidden.add(series.name);
    drawChart(chart.place, chart.data);
  });
  entry.addEventListener("dblclick", () => {
    chart.hidden = new Set(chart.names.filter(name => name !== series.name));
    drawChart(chart.place, chart.data);
  });
  return entry;
}

function resetButton(chart) {
  const reset = element("button", {type: "button", class: "reset"}, "Show everything");
  reset.addEventListener("click", () => resetZoom(chart));
  return reset;
}

function swatch(series) {
  const made = shape("svg", {viewBox: "0 0 24 12", class: "swatch", "aria-hidden": "true"});
  tint(made, series.colour || "all");
  if (series.draw === "bars") made.append(shape("rect", {x: 6, y: 1, width: 12, height: 10}));
  if (series.draw === "line") made.append(shape("path", {class: "line", d: "M1 6H23", ...dashes(series.dash)}));
  const marked = series.mark || series.draw === "points";
  if (marked) made.append(shape("path", {class: "mark", d: symbol(series.mark, 12, 6, 4)}));
  return made;
}

// ---- drawing ----

function render(chart) {
  const {svg, data} = chart, {width, height} = svg.getBoundingClientRect();
  if (width < 40 || height < 40) return;  // hidden; the observer calls again
  const size = width < 560 ? 11 : 13, dated = data.x.kind === "time";
  const foot = data.x.kind === "hidden" ? 4 : 22 + (dated ? 16 : 0) + (data.x.title ? 22 : 0);
  chart.panels = placePanels(chart, width, height - foot - 8, size);
  const widths = chart.panels.flatMap(({panel, y}) => {
    return y.marks.map(mark => widthOf(mark.shown, size) + 10 + (panel.y.title ? 24 : 0));
  });
  chart.left = Math.ceil(Math.max(0, ...widths));
  chart.wide = width - chart.left - 14;
  chart.x = makeAxis(data.x, chart.zoom.x || data.x.range, 0, chart.wide, chart.wide / (dated ? 92 : 78));
  chart.cursor = shape("g", {class: "cursor"});
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("font-size", size);
  const parts = chart.panels.flatMap(one => drawPanel(one, chart, size));
  svg.replaceChildren(...parts, ...drawFoot(chart, width, height, foot, size), chart.cursor);
  if (chart.pointer) point(chart, ...chart.pointer);
}

// The panels from above, each with its axis.
function placePanels(chart, width, height, size) {
  const {panels} = chart.data, whole = panels.reduce((sum, one) => sum + (one.tall || 1), 0);
  let top = 8;
  return panels.map((panel, i) => {
    const tall = (height - GAP * (panels.length - 1)) * (panel.tall || 1) / whole, rows = panel.y.kind === "rows";
    const y = rows ? makeAxis(panel.y, [-0.5, panel.y.names.length - 0.5], 0, tall, 2) :
      makeAxis(panel.y, chart.zoom.y[i] || panel.y.range, tall, 0, tall / 38);
    for (const mark of y.marks) mark.shown = rows ? fitted(mark.text, size, 0.4 * width) : mark.text;
    const series = panel.series.filter(one => isShown(chart, one));
    const placed = {panel, y, top, tall, series: panel.stack ? stacked(series) : series};
    top += tall + GAP;
    return placed;
  });
}

function drawFoot({x, left, wide, data}, width, height, foot, size) {
  const middle = {"text-anchor": "middle"}, under = height - foot;
  const made = [], ends = [-Infinity, -Infinity];  // of the texts so far, of times and of days
  for (const mark of x.marks) {
    const texts = [mark.text, mark.below || ""].map((text, line) => {
      const half = widthOf(text, size) / 2, at = Math.max(half, Math.min(width - half, left + x.at(mark.value)));
      return {text, line, half, at};
    }).filter(({text}) => text);
    if (texts.some(({line, half, at}) => at - half < ends[line] + 6)) continue;  // moved inwards, it has no room
    for (const {text, line, half, at} of texts) {
      ends[line] = at + half;
      made.push(shape("text", {class: "tick", x: at, y: under + 17 + 16 * line, ...middle}, text));
    }
  }
  if (data.x.title) made.push(shape("text", {class: "title", x: left + wide / 2, y: height - 6, ...middle}, data.x.title));
  return made;
}

function drawPanel({panel, y, top, tall, series}, {x, left, wide}, size) {
  const made = [], middle = {"text-anchor": "middle"}, up = panel.y.kind === "rows" ? [] : y.marks;
  if (panel.y.title) {
    const turned = `translate(${size} ${top + tall / 2}) rotate(-90)`;
    made.push(shape("text", {class: "title", transform: turned, ...middle}, panel.y.title));
  }
  for (const mark of y.marks) {
    const place = {x: left - 8, y: top + y.at(mark.value), dy: "0.35em", "text-anchor": "end"};
    const text = shape("text", {class: "tick", ...place}, mark.shown);
    if (mark.shown !== mark.text) text.append(shape("title", {}, mark.text));
    made.push(text);
  }
  const inside = shape("svg", {class: "panel", x: left, y: top, width: wide, height: tall, overflow: "hidden"});
  const lines = [...up.map(mark => `M0 ${y.at(mark.value)}H${wide}`), ...x.marks.map(mark => `M${x.at(mark.value)} 0V${tall}`)];
  inside.append(shape("path", {class: "grid", d: lines.join("")}));
  for (const one of series) inside.append(drawSeries(one, x, y, wide, size));
  for (const line of panel.across || []) inside.append(drawAcross(line, x, y, wide, tall, size));
  if (panel.note) inside.append(shape("text", {class: "note", x: wide / 2, y: tall / 2, ...middle}, panel.note));
  made.push(inside);
  if (panel.y.kind !== "hidden") made.push(shape("path", {class: "base", d: `M${left} ${top + tall}h${wide}`}));
  return made;
}

function drawAcross(line, x, y, wide, tall, size) {
  const group = shape("g", {class: "across"});
  const d = line.x === undefined ? `M0 ${y.at(line.y)}H${wide}` : `M${x.at(line.x)} 0V${tall}`;
  tint(group, line.colour);
  group.append(shape("path", {class: "line", d, ...dashes(line.dash || "dash")}));
  if (line.text) group.append(shape("text", line.x === undefined ? besideLine(y.at(line.y), wide, size) : {x: x.at(line.x) + 5, y: size}, line.text));
  return group;
}

// At the right end, above the line if there is room.
const besideLine = (up, wide, size) => ({x: wide - 6, y: up < size + 8 ? up + size + 2 : up - 5, "text-anchor": "end"});

// ---- tooltips ----

// Tell what is at this place: from the left end of the panels, and from the top.
function point(chart, px, py) {
  chart.pointer = [px, py];
  const panel = chart.panels.find(one => py >= one.top - GAP / 2 && py <= one.top + one.tall + GAP / 2);
  const told = panel && px >= -NEAR && px <= chart.wide + NEAR ? tell(chart, panel, px, py - panel.top) : null;
  chart.cursor.replaceChildren();
  chart.tip.hidden = !told;
  if (!told) return;
  drawCursor(chart, told);
  const lines = told.lines.map(({series, text}) => {
    const line = element("div", {}, text);
    if (series) line.prepend(swatch(series));
    return line;
  });
  chart.tip.replaceChildren(element("strong", {}, told.head), ...lines);
  const [x, y] = told.dots?.length === 1 ? told.dots[0] : [told.line ?? px, py];
  placeTip(chart, chart.left + x, y);
}

function drawCursor({cursor, panels, left}, {line, box, dots}) {
  const last = panels[panels.length - 1];
  if (line !== undefined) cursor.append(shape("path", {d: `M${left + line} 8V${last.top + last.tall}`}));
  if (box) cursor.append(shape("rect", {x: left + box[0], y: box[1], width: box[2], height: box[3]}));
  for (const [x, y] of dots || []) cursor.append(shape("circle", {cx: left + x, cy: y, r: 5}));
}

// Beside its place: to the right if there is room.
function placeTip({tip, svg, legend}, x, y) {
  const box = tip.getBoundingClientRect(), around = svg.getBoundingClientRect();
  const left = x + 16 + box.width > around.width ? x - 16 - box.width : x + 16;
  const top = Math.max(0, Math.min(y - box.height / 2, around.height - box.height));
  tip.style.left = `${Math.max(0, left)}px`;
  tip.style.top = `${legend.offsetHeight + top}px`;
}

function leave(chart) {
  [chart.pointer, chart.stop] = [null, -1];
  chart.tip.hidden = true;
  chart.cursor?.replaceChildren();
}

// ---- pointer, keys, zoom ----

const isZoomed = chart => Boolean(chart.zoom.x || Object.keys(chart.zoom.y).length);

function setZoom(chart, x, panel, y) {
  if (x) chart.zoom.x = x;
  if (y) chart.zoom.y[panel] = y;
  leave(chart);
  drawChart(chart.place, chart.data);
  chart.place.dispatchEvent(new CustomEvent("zoomed", {detail: chart.zoom.x || null}));  // what is shown of x
}

function resetZoom(chart) {
  chart.zoom = {y: {}};
  setZoom(chart);
}

// Show this part of x, or everything, as if it had been marked; nobody is told.
function zoomChart({chart}, x) {
  if (!chart) return;
  chart.zoom = x ? {...chart.zoom, x} : {y: {}};
  leave(chart);
  drawChart(chart.place, chart.data);
}

function listenTo(chart) {
  const {svg} = chart;
  let from = null;  // where a drag began
  const where = event => {
    const box = svg.getBoundingClientRect();
    return [event.clientX - box.left - chart.left, event.clientY - box.top];
  };
  svg.addEventListener("pointerdown", event => {
    if (event.pointerType === "touch" || event.button || !chart.panels) return;
    const [px, py] = where(event), panel = chart.panels.findIndex(one => py >= one.top && py <= one.top + one.tall);
    if (panel < 0 || px < 0 || px > chart.wide) return;
    from = {px, py, panel};
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", event => {
    if (!chart.panels) return;
    if (!from) return point(chart, ...where(event));
    const area = dragged(chart, from, where(event));
    chart.tip.hidden = true;
    chart.cursor.replaceChildren();
    if (!area) return;
    const [x, y] = [chart.left + area.x[0], area.y[0]], [width, height] = [area.x, area.y].map(([low, high]) => high - low);
    chart.cursor.append(shape("rect", {class: "drag", x, y, width, height}));
  });
  svg.addEventListener("pointerup", event => {
    const area = from && dragged(chart, from, where(event)), panel = from?.panel;
    from = null;
    if (!area) return chart.panels && point(chart, ...where(event));
    const {y, top} = chart.panels[panel];
    const [high, low] = area.y.map(pixel => y.back(pixel - top));
    setZoom(chart, area.wide && area.x.map(chart.x.back), panel, area.high && [low, high]);
  });
  svg.addEventListener("pointerleave", event => {
    if (!from && event.pointerType !== "touch") leave(chart);  // a finger has left, and its owner reads on
  });
  svg.addEventListener("blur", () => leave(chart));
  svg.addEventListener("dblclick", () => resetZoom(chart));
  svg.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || !chart.panels) return;
    if (key(chart, event.key)) event.preventDefault();
  });
}

// The marked area, in pixels: of one axis if the pointer moved along that alone; null if it hardly moved.
function dragged(chart, {px, py, panel}, [toX, toY]) {
  const {top, tall, panel: {y: spec}} = chart.panels[panel];
  const between = (from, to, low, high) => [from, Math.max(low, Math.min(high, to))].sort((a, b) => a - b);
  const x = between(px, toX, 0, chart.wide), y = between(py, toY, top, top + tall);
  const wide = x[1] - x[0] > 8, high = y[1] - y[0] > (wide ? 24 : 8) && spec.kind !== "rows";
  if (!wide && !high) return null;
  return {wide, high, x: wide ? x : [0, chart.wide], y: high ? y : [top, top + tall]};
}

// Whether this key means something to a chart.
function key(chart, name) {
  if (name === "Escape") resetZoom(chart);
  else if (name === "+" || name === "-") zoomBy(chart, name === "+" ? 0.5 : 2);
  else return step(chart, name);
  return true;
}

function zoomBy(chart, factor) {
  const middle = chart.pointer ? chart.pointer[0] : chart.wide / 2, half = factor * chart.wide / 2;
  const [low, high] = [middle - half, middle + half].map(chart.x.back), [first, last] = chart.data.x.range;
  if (low <= first && high >= last) resetZoom(chart);
  else setZoom(chart, [Math.max(low, first), Math.min(high, last)]);
}

function step(chart, name) {
  const {stops, column} = stopsOf(chart), last = stops.length - 1;
  const moves = {ArrowRight: column, ArrowDown: 1, ArrowLeft: -column, ArrowUp: -1, Home: -Infinity, End: Infinity};
  if (last < 0 || !(name in moves)) return false;
  const next = chart.stop < 0 && name.startsWith("Arrow") ? (moves[name] > 0 ? 0 : last) : chart.stop + moves[name];
  chart.stop = Math.max(0, Math.min(last, next));
  point(chart, ...stops[chart.stop]);
  return true;
}
