// What is told about the values near the pointer: a head, a line for each series, and what is marked in the chart
// (`line`: an x, `dots`: points, `box`: an area; in pixels from the left end of the panels and the top of the chart).
"use strict";

const NEAR = 30;  // pixels; nothing is told about points farther from the pointer

const speaks = series => !series.quiet && series.draw !== "words";
const lineOf = (series, text) => ({series, text: [series.says ?? series.name ?? "", text].filter(Boolean).join(" ")});

function valueText(series, i, x, y) {
  const axis = series.along === "x" ? x : y, value = (series.along === "x" ? series.x : series.y)[i];
  if (value == null) return "";
  const low = series.low?.[i], high = series.high?.[i];
  if (low == null) return axis.say(value);
  if (axis.spec.kind === "delay") return withInterval(value, low, high);
  return `${axis.say(value)} (${axis.say(low)} to ${axis.say(high)})`;
}

// From one value to another; a date is said once.
function saySpan(axis, from, to) {
  const [first, last] = [axis.say(from), axis.say(to)];
  const dated = axis.spec.kind === "time" && first.slice(0, 11) === last.slice(0, 11);
  return `${first} to ${dated ? last.slice(11) : last}`;
}

function tell(chart, panel, px, py) {
  const heat = panel.series.find(one => one.draw === "heat");
  if (heat) return tellCell(chart, panel, heat, px, py);
  if (panel.panel.y.kind === "rows") return tellRow(chart, panel, py);
  return chart.data.hover === "x" ? tellColumn(chart, px) : tellNearest(chart, panel, px, py);
}

function tellCell({x}, {y, top}, series, px, py) {
  const [i, j] = [cellAt(series.x, x, px), cellAt(series.y, y, py)];
  if (i < 0 || j < 0 || !series.z[j][i]) return null;
  const [left, right] = [x.at(series.x[i]), x.at(series.x[i + 1])], [a, b] = [y.at(series.y[j]), y.at(series.y[j + 1])];
  const said = () => `${count(series.z[j][i])} ${series.unit}: ${saySpan(y, series.y[j], series.y[j + 1])}`;
  return {
    head: saySpan(x, series.x[i], series.x[i + 1]),
    lines: [{text: series.tips ? series.tips[j][i] : said()}],
    box: [left, top + Math.min(a, b), right - left, Math.abs(a - b)],
  };
}

function cellAt(edges, axis, pixel) {
  return edges.slice(1).findIndex((end, i) => (axis.at(edges[i]) - pixel) * (axis.at(end) - pixel) <= 0);
}

function tellRow({x, wide}, {panel, y, top, series}, py) {
  const names = panel.y.names, row = Math.max(0, Math.min(names.length - 1, Math.round(y.back(py))));
  const lines = series.filter(speaks).flatMap(one => one.y.flatMap((at, i) => {
    return at === row && one.x[i] != null ? [lineOf(one, one.tips ? one.tips[i] : valueText(one, i, x, y))] : [];
  }));
  const height = Math.abs(y.at(1) - y.at(0));
  return {head: names[row], lines, box: [0, top + y.at(row) - height / 2, wide, height]};
}

// The values of all series at one x: that of the nearest point of a line, if there are lines.
function tellColumn(chart, px) {
  const {x} = chart, value = x.back(px), lines = [], dots = [];
  const speaking = chart.panels.flatMap(panel => panel.series.filter(speaks).map(series => ({series, panel})));
  const snapped = nearestX(speaking.map(one => one.series), x, px), at = snapped === null ? px : x.at(snapped);
  let head = x.say(snapped ?? value);
  for (const {series, panel} of speaking) {
    const i = indexAt(series, x, px, value, snapped);
    const said = i < 0 ? "" : [valueText(series, i, x, panel.y), series.tips?.[i]].filter(Boolean).join(" ");
    if (!said) continue;
    lines.push(lineOf(series, said));
    if (series.draw === "bars") head = saySpan(x, series.from[i], series.to[i]);
    else dots.push([series.draw === "points" ? x.at(series.x[i]) : at, panel.top + panel.y.at(series.y[i])]);
  }
  return lines.length ? {head: `${chart.data.head || ""}${head}`, lines, dots, line: at} : null;
}

function nearestX(series, x, px) {
  let best = null;
  for (const one of series) {
    if (one.draw !== "line" || one.step) continue;
    one.x.forEach((at, i) => {
      if (one.y[i] != null && (best === null || Math.abs(x.at(at) - px) < Math.abs(x.at(best) - px))) best = at;
    });
  }
  return best;
}

function indexAt(series, x, px, value, snapped) {
  if (series.draw === "bars") return series.from.findIndex((from, i) => from <= value && value < series.to[i]);
  if (series.draw === "points") return series.x.findIndex(at => Math.abs(x.at(at) - px) < 8);
  return series.step ? series.x.findLastIndex(at => at <= value) : series.x.indexOf(snapped);
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
  const {one, i} = best, value = valueText(one, i, x, y);
  const [head, ...more] = (one.tips?.[i] ?? x.say(one.x[i])).split("\n");
  if (one.tips && ["time", "seconds"].includes(data.x.kind)) more.push(x.say(one.x[i]));
  const lines = [...(value ? [lineOf(one, value)] : []), ...more.map(text => ({text}))];
  return {head, lines, dots: [[x.at(one.x[i]), top + y.at(one.y[i])]]};
}

// Where arrow keys stop: at values in order, at rows, or in the cells of a heat map, column by column.
function stopsOf({panels, x, wide}) {
  const [{series, panel, y, top}] = panels, heat = panels.length === 1 && series.find(one => one.draw === "heat");
  if (heat) {
    const middle = (axis, edges, i) => (axis.at(edges[i]) + axis.at(edges[i + 1])) / 2, last = heat.z.length - 1;
    const cell = (i, j) => [middle(x, heat.x, i), top + middle(y, heat.y, last - j)];
    return {stops: heat.z[0].flatMap((_, i) => heat.z.map((_, j) => cell(i, j))), column: heat.z.length};
  }
  if (panel.y.kind === "rows") return {stops: panel.y.names.map((_, row) => [wide / 2, top + y.at(row)]), column: 1};
  const stops = panels.flatMap(one => one.series.filter(speaks).flatMap(known => pointsOf(known, x, one.y, one.top)));
  return {stops: stops.filter(([px]) => px >= 0 && px <= wide).sort((a, b) => a[0] - b[0] || a[1] - b[1]), column: 1};
}

function pointsOf(series, x, y, top) {
  if (series.draw === "heat") return [];
  const at = i => series.from ? (x.at(series.from[i]) + x.at(series.to[i])) / 2 : x.at(series.x[i]);
  return series.y.flatMap((value, i) => value == null ? [] : [[at(i), top + y.at(value)]]);
}
