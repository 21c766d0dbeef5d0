// Series of a chart as SVG. Text is never inserted as HTML, and colours are names from the style sheet, so that the
// browser alone turns a chart dark or light.
"use strict";

const LEVELS = 24;  // colours of a heat map
const DASHES = {dash: "7 4", dot: "2 4"};
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

function shape(name, attributes = {}, text) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, text);
}

function element(name, attributes = {}, text) {
  return filled(document.createElement(name), attributes, text);
}

function filled(made, attributes, text) {
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const tint = (made, colour) => made.style.setProperty("--colour", `var(--${colour})`);
const dashes = name => name ? {"stroke-dasharray": DASHES[name]} : {};

// ---- texts ----

const pen = document.createElement("canvas").getContext("2d");

function widthOf(text, size) {
  pen.font = `${size}px ${FONT}`;
  return pen.measureText(text).width;
}

// A name that fits. A flow is told from others by its source; of other names both ends matter, and the middle is cut.
function fitted(text, size, most) {
  if (widthOf(text, size) <= most) return text;
  const letters = [...text], tail = text.includes(" > ") ? 0 : 0.5;
  let kept = letters.length, cut = text;
  while (kept > 2 && widthOf(cut, size) > most) {
    kept -= 1;
    const last = Math.floor(kept * tail);
    cut = `${letters.slice(0, kept - last).join("")}…${letters.slice(letters.length - last).join("")}`;
  }
  return cut;
}

// ---- series ----

function drawSeries(series, x, y, wide, size) {
  const group = shape("g", {class: `series ${series.draw}`});
  if (series.name) group.dataset.name = series.name;
  tint(group, series.colour || (series.draw === "words" ? "soft" : "all"));
  group.append(...DRAW[series.draw](series, x, y, wide, size));
  return group;
}

const DRAW = {line: drawLine, points: drawPoints, bars: drawBars, heat: drawHeat, words: drawWords};

function drawLine(series, x, y) {
  const made = [], points = series.x.map((at, i) => series.y[i] == null ? null : [x.at(at), y.at(series.y[i])]);
  const paths = runs(points).map(run => ({run, path: linePath(run, series.step)}));
  if (series.low) made.push(shape("path", {class: "band", d: bandPath(series, x, y)}));
  if (series.fill) {
    const d = paths.map(({run, path}) => `${path}V${y.at(0)}H${run[0][0]}Z`).join("");
    made.push(shape("path", {class: "fill", d}));
  }
  const d = paths.map(({path}) => path).join("");
  made.push(shape("path", {class: "line", d, "stroke-width": series.width || 2, ...dashes(series.dash)}));
  if (series.mark) {
    const marks = points.map(at => at ? symbol(series.mark, ...at, series.size || 3) : "");
    made.push(shape("path", {class: "mark", d: marks.join("")}));
  }
  return made;
}

function drawPoints(series, x, y, wide, size) {
  const made = series.low && !series.bare ? [shape("path", {class: "error", d: errorPath(series, x, y)})] : [];
  const radius = series.size || 3, opacity = series.opacity || 1;
  series.x.forEach((value, i) => {
    if (series.y[i] == null) return;
    const [at, up] = [x.at(value), y.at(series.y[i])];
    made.push(shape("path", {class: "mark", d: symbol(series.mark, at, up, radius), opacity}));
    if (!series.labels) return;
    const place = {x: at, y: up - radius - 4, "text-anchor": "middle", "font-size": size - 1};
    made.push(shape("text", {class: "label", ...place}, series.labels[i]));
  });
  return made;
}

function drawBars(series, x, y) {
  const made = boxes(series, x, y).flatMap((box, i) => {
    if (!box) return [];
    const bar = shape("rect", {x: box[0], y: box[1], width: box[2], height: box[3]});
    if (series.colours) tint(bar, series.colours[i]);
    return [bar];
  });
  if (series.low) made.push(shape("path", {class: "error", d: errorPath(series, x, y)}));
  return made;
}

// One path for all cells of a colour: thousands of cells are a few elements.
function drawHeat(series, x, y) {
  const across = series.x.map(at => Math.round(x.at(at))), up = series.y.map(at => Math.round(y.at(at)));
  const [gapX, gapY] = series.gap || [0, 0], levels = Array.from({length: LEVELS}, () => []);
  series.z.forEach((row, j) => row.forEach((value, i) => {
    if (!value) return;
    const share = series.log ? Math.log(value) / Math.log(Math.max(series.most, 2)) : value / series.most;
    const left = across[i] + gapX / 2, wide = across[i + 1] - across[i] - gapX;
    const top = Math.min(up[j], up[j + 1]) + gapY / 2, tall = Math.abs(up[j + 1] - up[j]) - gapY;
    levels[Math.round(Math.min(1, share) * (LEVELS - 1))].push(`M${left} ${top}h${wide}v${tall}h${-wide}z`);
  }));
  return levels.flatMap((cells, level) => {
    if (!cells.length) return [];
    const place = 3 * level / (LEVELS - 1), low = Math.min(2, Math.floor(place));
    const made = shape("path", {class: "cells", d: cells.join("")});
    const more = Math.round(100 * (place - low));
    made.style.fill = `color-mix(in oklab, var(--heat${low + 1}) ${more}%, var(--heat${low}))`;
    return [made];
  });
}

// Words stand beside their x, above it, or at the right end if they have none.
function drawWords(series, x, y, wide) {
  let last = -Infinity;
  return series.text.flatMap((text, i) => {
    const up = y.at(series.y[i]);
    if (series.x[i] == null) return [shape("text", {class: "label", x: wide - 6, y: up, dy: "0.35em", "text-anchor": "end"}, text)];
    const at = x.at(series.x[i]);
    if (!series.above) return [shape("text", {x: at + 6, y: up, dy: "0.35em"}, text)];
    if (at - last < 12) return [];  // no room beside the one before
    last = at;
    return [shape("text", {x: at, y: up, dy: "-0.3em", "text-anchor": "middle"}, text)];
  });
}

// ---- paths ----

// Points until the next gap, over and over.
function runs(points) {
  const found = [[]];
  for (const at of points) at ? found[found.length - 1].push(at) : found.push([]);
  return found.filter(run => run.length);
}

// A point between two gaps is a dot.
function linePath(run, step) {
  if (run.length === 1) return `M${run[0][0]} ${run[0][1]}h0`;
  return "M" + run.map(([x, y], i) => step && i ? `H${x}V${y}` : `${i ? "L" : ""}${x} ${y}`).join("");
}

// An interval between two gaps is a box.
function bandPath(series, x, y) {
  const ends = series.x.map((at, i) => {
    return series.low[i] == null ? null : [x.at(at), y.at(series.low[i]), y.at(series.high[i])];
  });
  return runs(ends).map(run => {
    if (run.length === 1) return `M${run[0][0] - 3} ${run[0][2]}h6V${run[0][1]}h-6Z`;
    const high = run.map(([at, , to]) => [at, to]), low = run.map(([at, from]) => [at, from]).reverse();
    return `${linePath(high)}L${linePath(low).slice(1)}Z`;
  }).join("");
}

function symbol(mark, x, y, size) {
  if (mark === "square") return `M${x - size} ${y - size}h${2 * size}v${2 * size}h${-2 * size}z`;
  const half = 1.3 * size;
  if (mark === "diamond") return `M${x} ${y - half}l${half} ${half}l${-half} ${half}l${-half} ${-half}z`;
  return `M${x - size} ${y}a${size} ${size} 0 1 0 ${2 * size} 0a${size} ${size} 0 1 0 ${-2 * size} 0z`;
}

// The box of each bar: [x, y, width, height], or null. A bar along x has a row and may start at a base; one along y
// reaches from one x to another.
function boxes(series, x, y) {
  if (series.along === "x") {
    const tall = 0.62 * Math.abs(y.at(1) - y.at(0));
    return series.x.map((value, i) => {
      if (value == null) return null;
      const base = series.base?.[i] || 0, from = x.at(base), to = x.at(base + value);
      return [Math.min(from, to), y.at(series.y[i]) - tall / 2, Math.abs(to - from), tall];
    });
  }
  return series.y.map((value, i) => {
    if (value == null) return null;
    const from = x.at(series.from[i]), wide = x.at(series.to[i]) - from, gap = (series.gap || 0) * wide;
    return [from + gap / 2, y.at(value), Math.max(wide - gap, 0.5), Math.max(y.at(0) - y.at(value), 0)];
  });
}

// Bars, each beginning where the one before it in the same row ends.
function stacked(series) {
  const ends = [];
  return series.map(one => {
    if (one.draw !== "bars") return one;
    const base = one.y.map(row => ends[row] || 0);
    one.y.forEach((row, i) => { ends[row] = base[i] + (one.x[i] || 0); });
    return {...one, base};
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
