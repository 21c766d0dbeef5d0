// Charts, drawn as SVG from plain data: charts.py says what a chart holds. Text is never inserted as HTML, and colours
// are names from the style sheet, so that the browser alone turns a chart dark or light.
"use strict";
const {drawChart, shape} = (() => {  // the names of everything else stay in here

const NEAR = 30;  // pixels; nothing is said about values farther from the pointer
const GAP = 24;  // pixels between panels
const LEVELS = 24;  // colours of a heat map
const DASHES = {dash: "7 4", dot: "2 4"};
const dashes = name => name ? {"stroke-dasharray": DASHES[name]} : {};
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

function shape(name, attributes = {}, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function element(name, attributes = {}, text) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const pen = document.createElement("canvas").getContext("2d");
function widthOf(text, size) {
  pen.font = `${size}px ${FONT}`;
  return pen.measureText(text).width;
}

// A name that fits. A flow is told from others by its source; of other names both ends matter, and the middle is cut.
function fitted(text, size, most) {
  const letters = [...text], tail = text.includes(" > ") ? 0 : 0.5;
  let kept = letters.length;
  const cut = () => letters.slice(0, Math.ceil(kept * (1 - tail))).join("") + "…" + letters.slice(letters.length - Math.floor(kept * tail)).join("");
  if (widthOf(text, size) <= most) return text;
  while (kept > 2 && widthOf(cut(), size) > most) kept -= 1;
  return cut();
}

// ---- a chart and its place in the page ----

function drawChart(place, data) {
  const chart = place.chart ??= begin(place);
  chart.data = data;
  drawLegend(chart);
  render(chart);
}

function begin(place) {
  const legend = element("div", {class: "legend"}), tip = element("div", {class: "tip", role: "status", hidden: ""});
  const title = place.getAttribute("aria-label") || "Chart";
  const svg = shape("svg", {class: "plot", tabindex: 0, role: "application", "aria-label":
    `${title}. Arrow keys read values, plus and minus zoom, Escape shows everything.`});
  place.replaceChildren(legend, svg, tip);
  const chart = {legend, svg, tip, hidden: new Set(), zoom: {y: {}}, pointer: null, stop: -1};
  new ResizeObserver(() => render(chart)).observe(svg);
  listen(chart);
  return chart;
}

const allSeries = chart => chart.data.panels.flatMap(panel => panel.series);
const isShown = (chart, series) => !chart.hidden.has(series.name);

function drawLegend(chart) {
  const named = new Map(allSeries(chart).filter(one => one.name && !one.plain).map(one => [one.name, one]));
  const entries = [...named].map(([name, series]) => {
    const entry = element("button", {type: "button", "aria-pressed": isShown(chart, series), title: "Hide or show; double-click shows this alone"});
    entry.append(swatch(series), element("span", {}, name));
    entry.addEventListener("click", () => {
      if (!chart.hidden.delete(name)) chart.hidden.add(name);
      drawLegend(chart);
      render(chart);
      [...chart.legend.children].find(one => one.textContent === name)?.focus();
    });
    entry.addEventListener("dblclick", () => {
      chart.hidden = new Set([...named.keys()].filter(other => other !== name));
      drawLegend(chart);
      render(chart);
    });
    return entry;
  });
  const reset = element("button", {type: "button", class: "reset"}, "Show everything");
  reset.hidden = !isZoomed(chart);
  reset.addEventListener("click", () => resetZoom(chart));
  chart.legend.replaceChildren(...entries, reset);
}

function swatch(series) {
  const made = shape("svg", {viewBox: "0 0 24 12", class: "swatch", "aria-hidden": "true"});
  tint(made, series.colour);
  if (series.draw === "bars") made.append(shape("rect", {x: 6, y: 1, width: 12, height: 10}));
  if (series.draw === "line") made.append(shape("path", {class: "line", d: "M1 6H23", ...dashes(series.dash)}));
  if (series.mark || series.draw === "points") made.append(shape("path", {class: "mark", d: symbol(series.mark, 12, 6, 4)}));
  return made;
}

const tint = (made, colour) => made.style.setProperty("--colour", `var(--${colour})`);

// ---- drawing ----

function render(chart) {
  const {svg, data} = chart, {width, height} = svg.getBoundingClientRect();
  if (width < 40 || height < 40) return;  // hidden; the observer calls again
  const size = width < 560 ? 11 : 13, hidden = data.x.kind === "hidden";
  const foot = hidden ? 4 : 22 + (data.x.kind === "time" ? 16 : 0) + (data.x.title ? 22 : 0);
  const room = height - 8 - foot - GAP * (data.panels.length - 1), whole = data.panels.reduce((sum, one) => sum + (one.tall || 1), 0);
  let top = 8, margin = 0;
  chart.panels = data.panels.map((panel, i) => {
    const tall = room * (panel.tall || 1) / whole, rows = panel.y.kind === "rows";
    const ends = rows ? [-0.5, panel.y.names.length - 0.5] : chart.zoom.y[i] || panel.y.range;
    const y = rows ? makeAxis(panel.y, ends, 0, tall, 2) : makeAxis(panel.y, ends, tall, 0, tall / 38);
    for (const mark of y.marks) mark.shown = rows ? fitted(mark.text, size, 0.4 * width) : mark.text;
    margin = Math.max(margin, ...y.marks.map(mark => widthOf(mark.shown, size) + 10 + (panel.y.title ? 24 : 0)));
    const series = panel.series.filter(one => isShown(chart, one));
    const made = {panel, y, top, tall, series: panel.stack ? stacked(series) : series};
    top += tall + GAP;
    return made;
  });
  const left = Math.ceil(margin), wide = width - left - 14;
  const x = chart.x = makeAxis(data.x, chart.zoom.x || data.x.range, 0, wide, wide / (data.x.kind === "time" ? 92 : 78));
  Object.assign(chart, {left, wide, size});
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("font-size", size);
  const parts = chart.panels.flatMap(one => drawPanel(one, x, left, wide, size));
  const under = height - foot;
  for (const mark of x.marks) {
    [mark.text, mark.below].forEach((text, line) => {
      if (!text) return;
      const half = widthOf(text, size) / 2, at = Math.max(half, Math.min(width - half, left + x.at(mark.value)));
      parts.push(shape("text", {class: "tick", x: at, y: under + 17 + 16 * line, "text-anchor": "middle"}, text));
    });
  }
  if (data.x.title) parts.push(shape("text", {class: "title", x: left + wide / 2, y: height - 6, "text-anchor": "middle"}, data.x.title));
  chart.cursor = shape("g", {class: "cursor"});
  svg.replaceChildren(...parts, chart.cursor);
  if (chart.pointer) point(chart, ...chart.pointer);
}

// Bars, each beginning where the one before it in the same row ends.
function stacked(series) {
  const ends = [];
  return series.map(one => {
    const base = one.y.map(row => ends[row] || 0);
    one.y.forEach((row, i) => { ends[row] = base[i] + (one.x[i] || 0); });
    return {...one, base};
  });
}

function drawPanel({panel, y, top, tall, series}, x, left, wide, size) {
  const made = [], rows = panel.y.kind === "rows";
  if (panel.y.title) {
    made.push(shape("text", {class: "title", "text-anchor": "middle", transform: `translate(${size} ${top + tall / 2}) rotate(-90)`}, panel.y.title));
  }
  const grid = [...(rows ? [] : y.marks.map(mark => `M0 ${y.at(mark.value)}H${wide}`)), ...x.marks.map(mark => `M${x.at(mark.value)} 0V${tall}`)];
  for (const mark of y.marks) {
    const text = shape("text", {class: "tick", x: left - 8, y: top + y.at(mark.value), dy: "0.35em", "text-anchor": "end"}, mark.shown);
    if (mark.shown !== mark.text) text.append(shape("title", {}, mark.text));
    made.push(text);
  }
  const inside = shape("svg", {class: "panel", x: left, y: top, width: wide, height: tall, overflow: "hidden"});
  inside.append(shape("path", {class: "grid", d: grid.join("")}));
  for (const one of series) inside.append(drawSeries(one, x, y, wide, size));
  for (const line of panel.across || []) {
    const at = line.x === undefined ? `M0 ${y.at(line.y)}H${wide}` : `M${x.at(line.x)} 0V${tall}`;
    const group = shape("g", {class: "across"});
    tint(group, line.colour);
    group.append(shape("path", {class: "line", d: at, ...dashes(line.dash || "dash")}));
    if (line.text) group.append(shape("text", {x: x.at(line.x) + 5, y: size}, line.text));
    inside.append(group);
  }
  if (panel.note) inside.append(shape("text", {class: "note", x: wide / 2, y: tall / 2, dy: "0.35em", "text-anchor": "middle"}, panel.note));
  made.push(inside);
  if (panel.y.kind !== "hidden") made.push(shape("path", {class: "base", d: `M${left} ${top + tall}h${wide}`}));
  return made;
}

function drawSeries(series, x, y, wide, size) {
  const group = shape("g", {class: `series ${series.draw}`});
  if (series.name) group.dataset.name = series.name;
  tint(group, series.colour || (series.draw === "words" ? "soft" : "all"));
  group.append(...DRAW[series.draw](series, x, y, wide, size));
  return group;
}

const DRAW = {
  line(series, x, y) {
    const made = [], points = series.x.map((at, i) => series.y[i] == null ? null : [x.at(at), y.at(series.y[i])]);
    if (series.low) made.push(shape("path", {class: "band", d: bandPath(series, x, y)}));
    if (series.fill) made.push(shape("path", {class: "fill", d: runs(points).map(run => `${linePath(run, series.step)}V${y.at(0)}H${run[0][0]}Z`).join("")}));
    made.push(shape("path", {class: "line", d: runs(points).map(run => linePath(run, series.step)).join(""),
      "stroke-width": series.width || 2, ...dashes(series.dash)}));
    if (series.mark) made.push(shape("path", {class: "mark", d: points.map(at => at ? symbol(series.mark, ...at, series.size || 3) : "").join("")}));
    return made;
  },
  points(series, x, y, wide, size) {
    const made = series.low && !series.bare ? [shape("path", {class: "error", d: errorPath(series, x, y)})] : [];
    series.x.forEach((at, i) => {
      if (series.y[i] == null) return;
      made.push(shape("path", {class: "mark", d: symbol(series.mark, x.at(at), y.at(series.y[i]), series.size || 3), opacity: series.opacity || 1}));
      if (series.labels) made.push(shape("text", {class: "label", x: x.at(at), y: y.at(series.y[i]) - (series.size || 3) - 4, "text-anchor": "middle", "font-size": size - 1}, series.labels[i]));
    });
    return made;
  },
  bars(series, x, y) {
    const made = [];
    boxes(series, x, y).forEach((box, i) => {
      if (!box) return;
      const bar = shape("rect", {x: box[0], y: box[1], width: box[2], height: box[3]});
      if (series.colours) tint(bar, series.colours[i]);
      made.push(bar);
    });
    if (series.low) made.push(shape("path", {class: "error", d: errorPath(series, x, y)}));
    return made;
  },
  heat(series, x, y) {
    const across = series.x.map(at => Math.round(x.at(at))), up = series.y.map(at => Math.round(y.at(at)));
    const [gapX, gapY] = series.gap || [0, 0], levels = Array.from({length: LEVELS}, () => []);
    series.z.forEach((row, j) => row.forEach((value, i) => {
      if (!value) return;
      const share = series.log ? Math.log(value) / Math.log(Math.max(series.most, 2)) : value / series.most;
      const high = Math.min(up[j], up[j + 1]) + gapY / 2, tall = Math.abs(up[j + 1] - up[j]) - gapY;
      levels[Math.round(Math.min(1, share) * (LEVELS - 1))].push(`M${across[i] + gapX / 2} ${high}h${across[i + 1] - across[i] - gapX}v${tall}h${across[i] - across[i + 1] + gapX}z`);
    }));
    return levels.flatMap((cells, level) => {
      if (!cells.length) return [];
      const place = 3 * level / (LEVELS - 1), low = Math.min(2, Math.floor(place)), made = shape("path", {class: "cells", d: cells.join("")});
      made.style.fill = `color-mix(in oklab, var(--heat${low + 1}) ${Math.round(100 * (place - low))}%, var(--heat${low}))`;
      return [made];
    });
  },
  words(series, x, y, wide) {
    let last = -Infinity;
    return series.text.flatMap((text, i) => {
      if (series.x[i] == null) return [shape("text", {x: wide - 6, y: y.at(series.y[i]), dy: "0.35em", "text-anchor": "end"}, text)];
      const at = x.at(series.x[i]), above = series.anchor === "middle";
      if (above && at - last < 12) return [];  // no room beside the one before
      last = at;
      return [shape("text", {x: above ? at : at + 6, y: y.at(series.y[i]), dy: above ? "-0.3em" : "0.35em", "text-anchor": series.anchor || "start"}, text)];
    });
  },
};

// Points until the next gap, over and over.
function runs(points) {
  const found = [[]];
  for (const at of points) at ? found[found.length - 1].push(at) : found.push([]);
  return found.filter(run => run.length);
}

// A point between two gaps is a dot.
const linePath = (run, step) => run.length === 1 ? `M${run[0][0]} ${run[0][1]}h0` : "M" + run.map(([x, y], i) => step && i ? `H${x}V${y}` : `${i ? "L" : ""}${x} ${y}`).join("");

function bandPath(series, x, y) {
  const ends = series.x.map((at, i) => series.low[i] == null ? null : [x.at(at), y.at(series.low[i]), y.at(series.high[i])]);
  return runs(ends).map(run => {
    if (run.length === 1) return `M${run[0][0] - 3} ${run[0][2]}h6V${run[0][1]}h-6Z`;  // between two gaps: a box
    const high = run.map(([at, , to]) => [at, to]), low = run.map(([at, from]) => [at, from]).reverse();
    return `${linePath(high)}L${linePath(low).slice(1)}Z`;
  }).join("");
}

function symbol(mark, x, y, size) {
  if (mark === "square") return `M${x - size} ${y - size}h${2 * size}v${2 * size}h${-2 * size}z`;
  if (mark === "diamond") return `M${x} ${y - 1.3 * size}l${1.3 * size} ${1.3 * size}l${-1.3 * size} ${1.3 * size}l${-1.3 * size} ${-1.3 * size}z`;
  return `M${x - size} ${y}a${size} ${size} 0 1 0 ${2 * size} 0a${size} ${size} 0 1 0 ${-2 * size} 0z`;
}

// The box of each bar: [x, y, width, height], or null. A bar along x has a row and may start at a base; one along y
// reaches from one x to another.
function boxes(series, x, y) {
  if (series.along === "x") {
    const tall = 0.62 * Math.abs(y.at(1) - y.at(0));
    return series.x.map((value, i) => {
      if (value == null) return null;
      const from = x.at(series.base?.[i] || 0), to = x.at((series.base?.[i] || 0) + value);
      return [Math.min(from, to), y.at(series.y[i]) - tall / 2, Math.abs(to - from), tall];
    });
  }
  return series.y.map((value, i) => {
    if (value == null) return null;
    const from = x.at(series.from[i]), wide = x.at(series.to[i]) - from, gap = (series.gap || 0) * wide, high = y.at(value);
    return [from + gap / 2, high, Math.max(wide - gap, 0.5), Math.max(y.at(0) - high, 0)];
  });
}

function errorPath(series, x, y) {
  const middle = i => series.from ? (x.at(series.from[i]) + x.at(series.to[i])) / 2 : x.at(series.x[i]);
  return series.low.map((low, i) => {
    if (low == null) return "";
    if (series.along !== "x") return `M${middle(i) - 3} ${y.at(low)}h6m-3 0V${y.at(series.high[i])}m-3 0h6`;
    const base = series.base?.[i] || 0;
    return `M${x.at(base + low)} ${y.at(series.y[i]) - 4}v8m0 -4H${x.at(base + series.high[i])}m0 -4v8`;
  }).join("");
}

// ---- what is told about the values near the pointer ----

function valueText(series, i, x, y) {
  const axis = series.along === "x" ? x : y, value = (series.along === "x" ? series.x : series.y)[i];
  if (value == null) return "";
  const low = series.low?.[i], high = series.high?.[i];
  return axis.say(value) + (low == null ? "" : ` (${axis.say(low)} to ${axis.say(high)})`);
}

// From one value to another; a date is said once.
function saySpan(axis, from, to) {
  const [first, last] = [axis.say(from), axis.say(to)];
  const dated = axis.spec.kind === "time" && first.slice(0, 11) === last.slice(0, 11);
  return `${first} to ${dated ? last.slice(11) : last}`;
}

const lineOf = (series, text) => ({series, text: [series.says ?? series.name ?? "", text].filter(Boolean).join(" ")});
const speaks = series => !series.quiet && series.draw !== "words";

function tell(chart, panel, px, py) {
  const heat = panel.series.find(one => one.draw === "heat");
  if (heat) return tellCell(chart, panel, heat, px, py);
  if (panel.panel.y.kind === "rows") return tellRow(chart, panel, py);
  return chart.data.hover === "x" ? tellColumn(chart, px) : tellNearest(chart, panel, px, py);
}

function tellCell({x}, {y, top}, series, px, py) {
  const inside = (edges, axis, pixel) => edges.findIndex((_, i) => i + 1 < edges.length &&
    (axis.at(edges[i]) - pixel) * (axis.at(edges[i + 1]) - pixel) <= 0);
  const i = inside(series.x, x, px), j = inside(series.y, y, py);
  if (i < 0 || j < 0 || !series.z[j][i]) return null;
  const text = series.tips ? series.tips[j][i] : `${count(Math.round(series.z[j][i]))} ${series.unit}: ${y.say(series.y[j])} to ${y.say(series.y[j + 1])}`;
  const [a, b] = [y.at(series.y[j]), y.at(series.y[j + 1])];
  return {head: saySpan(x, series.x[i], series.x[i + 1]), lines: [{text}], box: [x.at(series.x[i]), top + Math.min(a, b), x.at(series.x[i + 1]) - x.at(series.x[i]), Math.abs(a - b)]};
}

function tellRow({x}, {panel, y, top, series}, py) {
  const row = Math.max(0, Math.min(panel.y.names.length - 1, Math.round(y.back(py))));
  const lines = series.filter(speaks).flatMap(one => one.y.flatMap((at, i) => at === row && one.x[i] != null ?
    [lineOf(one, one.tips ? one.tips[i] : valueText(one, i, x, y))] : []));
  const height = Math.abs(y.at(1) - y.at(0));
  return {head: panel.y.names[row], lines, box: [0, top + y.at(row) - height / 2, null, height]};
}

function tellColumn(chart, px) {
  const {x} = chart, value = x.back(px), lines = [], dots = [];
  const speaking = chart.panels.flatMap(panel => panel.series.filter(speaks).map(series => ({series, panel})));
  let snapped = null;  // the point of a line that is nearest
  for (const {series} of speaking) {
    if (series.draw !== "line" || series.step) continue;
    series.x.forEach((at, i) => {
      if (series.y[i] != null && (snapped === null || Math.abs(x.at(at) - px) < Math.abs(x.at(snapped) - px))) snapped = at;
    });
  }
  const at = snapped === null ? px : x.at(snapped);
  let between = null;
  for (const {series, panel} of speaking) {
    const i = series.draw === "bars" ? series.from.findIndex((from, k) => from <= value && value < series.to[k]) :
      series.draw === "points" ? series.x.findIndex(one => Math.abs(x.at(one) - px) < 8) :
      series.step ? series.x.findLastIndex(one => one <= value) : series.x.indexOf(snapped);
    const said = i < 0 ? "" : [valueText(series, i, x, panel.y), series.tips?.[i]].filter(Boolean).join(" ");
    if (!said) continue;
    lines.push(lineOf(series, said));
    if (series.draw === "bars") between = saySpan(x, series.from[i], series.to[i]);
    else if (series.y[i] != null) dots.push([series.draw === "points" ? x.at(series.x[i]) : at, panel.top + panel.y.at(series.y[i])]);
  }
  if (!lines.length) return null;
  const head = snapped !== null ? x.say(snapped) : between || x.say(value);
  return {head: `${chart.data.head || ""}${head}`, lines, dots, line: at};
}

function tellNearest({x, data}, {y, top, series}, px, py) {
  let best = null, least = NEAR;
  for (const one of series.filter(speaks)) {
    one.x.forEach((at, i) => {
      if (one.y[i] == null) return;
      const far = Math.hypot(x.at(at) - px, y.at(one.y[i]) - py);
      if (far < least) [best, least] = [{one, i}, far];
    });
  }
  if (!best) return null;
  const {one, i} = best, [head, ...more] = (one.tips?.[i] ?? x.say(one.x[i])).split("\n"), value = valueText(one, i, x, y);
  const when = one.tips && ["time", "seconds"].includes(data.x.kind) ? [x.say(one.x[i])] : [];
  return {head, lines: [...(value ? [lineOf(one, value)] : []), ...[...more, ...when].map(text => ({text}))], dots: [[x.at(one.x[i]), top + y.at(one.y[i])]]};
}

function point(chart, px, py) {
  chart.pointer = [px, py];
  const panel = chart.panels.find(one => py >= one.top - GAP / 2 && py <= one.top + one.tall + GAP / 2);
  const told = panel && px >= -NEAR && px <= chart.wide + NEAR ? tell(chart, panel, px, py - panel.top) : null;
  chart.cursor.replaceChildren();
  chart.tip.hidden = !told;
  if (!told) return;
  const [last] = chart.panels.slice(-1), {left, wide} = chart;
  if (told.line !== undefined) chart.cursor.append(shape("path", {d: `M${left + told.line} 8V${last.top + last.tall}`}));
  if (told.box) chart.cursor.append(shape("rect", {x: left + told.box[0], y: told.box[1], width: told.box[2] ?? wide, height: told.box[3]}));
  for (const [x, y] of told.dots || []) chart.cursor.append(shape("circle", {cx: left + x, cy: y, r: 5}));
  const lines = told.lines.map(({series, text}) => {
    const line = element("div", {}, text);
    if (series) line.prepend(swatch(series));
    return line;
  });
  chart.tip.replaceChildren(element("strong", {}, told.head), ...lines);
  const box = chart.tip.getBoundingClientRect(), around = chart.svg.getBoundingClientRect();
  const [x, y] = told.dots?.length === 1 ? told.dots[0] : [told.line ?? px, py];
  const right = left + x + 16, flipped = right + box.width > around.width ? left + x - 16 - box.width : right;
  chart.tip.style.left = `${Math.max(0, flipped)}px`;
  const start = chart.legend.offsetHeight;
  chart.tip.style.top = `${start + Math.max(0, Math.min(y - box.height / 2, around.height - box.height))}px`;
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
  drawLegend(chart);
  render(chart);
}

function resetZoom(chart) {
  chart.zoom = {y: {}};
  setZoom(chart);
}

function listen(chart) {
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
    chart.cursor.replaceChildren(...(area ? [shape("rect", {class: "drag", x: chart.left + area.x[0], y: area.y[0], width: area.x[1] - area.x[0], height: area.y[1] - area.y[0]})] : []));
  });
  svg.addEventListener("pointerup", event => {
    const area = from && dragged(chart, from, where(event)), panel = from?.panel;
    from = null;
    if (!area) return chart.panels && point(chart, ...where(event));
    const {y, top} = chart.panels[panel];
    setZoom(chart, area.wide && area.x.map(chart.x.back), panel, area.high && [y.back(area.y[1] - top), y.back(area.y[0] - top)]);
  });
  svg.addEventListener("pointerleave", () => from || leave(chart));
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
  const limited = (value, low, high) => Math.max(low, Math.min(high, value));
  const x = [px, limited(toX, 0, chart.wide)].sort((a, b) => a - b), y = [py, limited(toY, top, top + tall)].sort((a, b) => a - b);
  const wide = x[1] - x[0] > 8, high = y[1] - y[0] > (wide ? 24 : 8) && spec.kind !== "rows";
  if (!wide && !high) return null;
  return {wide, high, x: wide ? x : [0, chart.wide], y: high ? y : [top, top + tall]};
}

function key(chart, name) {
  if (name === "Escape") return resetZoom(chart), true;
  if (name === "+" || name === "-") {
    const middle = chart.pointer ? chart.pointer[0] : chart.wide / 2, half = chart.wide * (name === "+" ? 0.25 : 1);
    const [low, high] = [middle - half, middle + half].map(chart.x.back), [first, last] = chart.data.x.range;
    if (low <= first && high >= last) resetZoom(chart);
    else setZoom(chart, [Math.max(low, first), Math.min(high, last)]);
    return true;
  }
  const {stops, column} = stopsOf(chart), last = stops.length - 1, none = chart.stop < 0;
  const steps = {ArrowRight: column, ArrowDown: 1, ArrowLeft: -column, ArrowUp: -1};
  const next = name === "Home" ? 0 : name === "End" ? last : none && name in steps ? (steps[name] > 0 ? 0 : last) : chart.stop + steps[name];
  if (last < 0 || Number.isNaN(next)) return false;
  chart.stop = Math.max(0, Math.min(last, next));
  point(chart, ...stops[chart.stop]);
  return true;
}

// Where arrow keys stop: at values in order, at rows, or in the cells of a heat map, column by column.
function stopsOf({panels, x, wide}) {
  const heat = panels.length === 1 && panels[0].series.find(one => one.draw === "heat");
  if (heat) {
    const {y, top} = panels[0], middle = (axis, edges, i) => (axis.at(edges[i]) + axis.at(edges[i + 1])) / 2;
    const cells = heat.z[0].flatMap((_, i) => heat.z.map((_, j) => [middle(x, heat.x, i), top + middle(y, heat.y, heat.z.length - 1 - j)]));
    return {stops: cells, column: heat.z.length};
  }
  if (panels[0].panel.y.kind === "rows") return {stops: panels[0].panel.y.names.map((_, row) => [wide / 2, panels[0].top + panels[0].y.at(row)]), column: 1};
  const found = panels.flatMap(({series, y, top}) => series.filter(one => speaks(one) && one.draw !== "heat").flatMap(one => one.y.flatMap((value, i) => value == null ? [] :
    [[one.from ? (x.at(one.from[i]) + x.at(one.to[i])) / 2 : x.at(one.x[i]), top + y.at(value)]])));
  const inside = found.filter(([px]) => px >= 0 && px <= wide).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  return {stops: inside, column: 1};
}

return {drawChart, shape};
})();
