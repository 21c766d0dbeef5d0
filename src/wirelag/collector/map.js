// The map: points on a circle, a curve for each segment. Colour is its state, thickness the loss. If the network is
// known: its current routers and links, measuring routers filled; segments of another time are left out. A ring around
// a router is its slowest inside. It is drawn only while it can be read.
"use strict";
const MAP_POINTS = 24, MAP_SEGMENTS = 60, MAP_AGE = 60;  // at most; seconds that a segment stays which the network does not have

function mapped(rows, network) {
  const follows = network && network.follows, until = new Map(follows ? network.segments.map(s => [s.segment, s.until]) : []);
  const fresh = row => !follows || until.has(row.segment) || (row.end !== null && row.end > now() - MAP_AGE);
  const ends = rows.filter(row => row.upstream && row.downstream && fresh(row));
  const drawn = network && network.routers.length <= MAP_POINTS ? network : {routers: [], links: [], upgraded: []};
  const points = [...new Set([...drawn.routers, ...ends.flatMap(row => [row.upstream, row.downstream])])].sort();
  return {ends, drawn, points, until};
}

function isReadable(rows, network) {
  if (rows.length > 4 * MAP_SEGMENTS) return false;
  const {ends, points} = mapped(rows, network);
  return points.length <= MAP_POINTS && ends.length <= MAP_SEGMENTS;
}

// A step for each factor of 10, so that 1% is seen: 2.5 without loss, 4.6 for 1%, 8.5 for all.
const widthOfLoss = loss => 2.5 + 2 * Math.log10(1 + 1000 * (loss || 0));

// A click, or Enter, chooses a segment.
function chooses(made, segment, choose) {
  for (const [name, value] of Object.entries({tabindex: 0, role: "button", "aria-label": `Segment ${segment}`})) made.setAttribute(name, value);
  made.append(shape("title", {}, segment));
  made.addEventListener("click", () => choose(segment));
  made.addEventListener("keydown", event => { if (event.key === "Enter") choose(segment); });
  return made;
}

function drawMap(svg, rows, chosen, choose, network) {
  const {ends, drawn, points, until} = mapped(rows, network), place = {}, centre = [210, 170];
  points.forEach((point, i) => {
    const angle = 2 * Math.PI * i / points.length - Math.PI / 2 - (points.length === 2 ? Math.PI / 2 : 0);
    place[point] = [centre[0] + 150 * Math.cos(angle), centre[1] + 120 * Math.sin(angle)];
  });
  svg.setAttribute("viewBox", "0 0 420 340");
  const focused = svg.contains(document.activeElement) ? document.activeElement.dataset.segment : undefined;
  const head = shape("marker", {id: "head", viewBox: "0 0 8 8", refX: 14.5, refY: 4, markerWidth: 11, markerHeight: 11, markerUnits: "userSpaceOnUse", orient: "auto"});
  head.append(shape("path", {d: "M0 0L8 4L0 8z", style: "fill:var(--soft)"}));
  const curves = ends.filter(row => row.upstream !== row.downstream).map(row => {
    const [a, b] = [place[row.upstream], place[row.downstream]];
    const bend = [(a[0] + b[0]) / 2 + (b[1] - a[1]) * 0.12, (a[1] + b[1]) / 2 - (b[0] - a[0]) * 0.12];
    const curve = shape("path", {d: `M${a}Q${bend} ${b}`, "stroke-width": widthOfLoss(row.loss), "marker-end": "url(#head)", "data-segment": row.segment, "data-state": row.state});
    tint(curve, STATES[row.state][1]);
    if (row.end === null || row.mean === null) curve.classList.add("unknown");
    if (until.get(row.segment)) curve.classList.add("ending");
    if (row.segment === chosen) curve.classList.add("chosen");
    return chooses(curve, row.segment, choose);
  });
  const links = drawn.links.filter(l => l.source < l.target).map(({source, target}) =>
    shape("line", {x1: place[source][0], y1: place[source][1], x2: place[target][0], y2: place[target][1], "data-link": `${source}>${target}`}));
  const rings = points.flatMap(point => {
    const inside = ends.filter(row => row.upstream === point && row.downstream === point && row.mean !== null && row.end !== null);
    if (!inside.length) return [];
    const slowest = inside.reduce((one, other) => other.mean > one.mean ? other : one);
    const ring = shape("circle", {cx: place[point][0], cy: place[point][1], r: 11, class: "inside", "data-segment": slowest.segment});
    tint(ring, STATES[slowest.state][1]);
    return [chooses(ring, slowest.segment, choose)];
  });
  const dots = points.flatMap(point => [
    shape("circle", {cx: place[point][0], cy: place[point][1], r: 7, class: drawn.upgraded.includes(point) ? "measures" : ""}),
    shape("text", {x: place[point][0], y: place[point][1] + (place[point][1] > centre[1] ? 24 : -14)}, point)]);
  svg.replaceChildren(head, ...links, ...curves, ...rings, ...dots);
  if (focused !== undefined) [...svg.children].find(one => one.dataset.segment === focused)?.focus();
}
