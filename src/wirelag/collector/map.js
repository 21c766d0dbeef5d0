// The map: points on a circle, a curve for each segment. Colour is the mean delay, thickness the loss. If the network
// is known: its current routers and links, measuring routers filled; segments of another time are left out. A ring
// around a router is its slowest inside.
"use strict";
const MAP_COLOURS = ["#2a77b8", "#00a07a", "#e0b000", "#e06a00", "#b3261e"];

function colourOf(delay, least, most) {
  if (delay === null || delay <= 0 || !(most > 0)) return "#98a2ab";
  const share = most > least ? Math.log(delay / least) / Math.log(most / least) : 0;
  const place = Math.min(Math.max(share, 0), 1) * (MAP_COLOURS.length - 1), low = Math.floor(place);
  const mix = (i, j) => Math.round(parseInt(MAP_COLOURS[low].slice(i, j), 16) * (1 - place + low) + parseInt(MAP_COLOURS[Math.min(low + 1, MAP_COLOURS.length - 1)].slice(i, j), 16) * (place - low));
  return `rgb(${mix(1, 3)},${mix(3, 5)},${mix(5, 7)})`;
}

const MAP_ROUTERS = 60, MAP_AGE = 60;  // more routers would be illegible; seconds that an unnamed segment stays

function drawMap(svg, segments, chosen, choose, network) {
  const follows = network && network.follows, until = new Map(follows ? network.segments.map(s => [s.segment, s.until]) : []);
  const fresh = s => !follows || until.has(s.segment) || (s.latest && s.latest.end > Date.now() / 1000 - MAP_AGE);
  const ends = segments.filter(s => s.upstream && s.downstream && fresh(s));
  const drawn = network && network.routers.length <= MAP_ROUTERS ? network : {routers: [], links: [], upgraded: []};
  const points = [...new Set([...drawn.routers, ...ends.flatMap(s => [s.upstream, s.downstream])])].sort();
  const delays = ends.map(s => s.latest && s.latest.mean).filter(d => d > 0);
  const least = Math.min(...delays), most = Math.max(...delays);
  const place = {}, centre = [210, 170];
  points.forEach((point, i) => {
    const angle = 2 * Math.PI * i / points.length - Math.PI / 2 - (points.length === 2 ? Math.PI / 2 : 0);
    place[point] = [centre[0] + 150 * Math.cos(angle), centre[1] + 120 * Math.sin(angle)];
  });
  svg.setAttribute("viewBox", "0 0 420 340");
  const head = shape("marker", {id: "head", viewBox: "0 0 8 8", refX: 14, refY: 4, markerWidth: 6, markerHeight: 6, markerUnits: "userSpaceOnUse", orient: "auto"});
  head.append(shape("path", {d: "M0 0L8 4L0 8z", style: "fill:var(--soft)"}));
  const curves = ends.filter(s => s.upstream !== s.downstream).map(segment => {
    const [a, b] = [place[segment.upstream], place[segment.downstream]];
    const bend = [(a[0] + b[0]) / 2 + (b[1] - a[1]) * 0.12, (a[1] + b[1]) / 2 - (b[0] - a[0]) * 0.12];
    const latest = segment.latest, colour = colourOf(latest ? latest.mean : null, least, most);
    const width = 2.5 + Math.min(6, 60 * (latest && latest.loss || 0));
    const curve = shape("path", {d: `M${a}Q${bend} ${b}`, stroke: colour, "stroke-width": width, "marker-end": "url(#head)", "data-segment": segment.segment});
    if (!latest || latest.mean === null) curve.classList.add("unknown");
    if (until.get(segment.segment)) curve.classList.add("ending");
    if (segment.segment === chosen) curve.classList.add("chosen");
    curve.append(shape("title", {}, segment.segment));
    curve.addEventListener("click", () => choose(segment.segment));
    return curve;
  });
  const links = drawn.links.filter(l => l.source < l.target).map(({source, target}) =>
    shape("line", {x1: place[source][0], y1: place[source][1], x2: place[target][0], y2: place[target][1], "data-link": `${source}>${target}`}));
  const rings = points.flatMap(point => {
    const inside = ends.filter(s => s.upstream === point && s.downstream === point && s.latest && s.latest.mean !== null);
    if (!inside.length) return [];
    const slowest = inside.reduce((one, other) => other.latest.mean > one.latest.mean ? other : one);
    const ring = shape("circle", {cx: place[point][0], cy: place[point][1], r: 11, class: "inside", style: `stroke:${colourOf(slowest.latest.mean, least, most)}`, "data-segment": slowest.segment});
    ring.append(shape("title", {}, slowest.segment));
    ring.addEventListener("click", () => choose(slowest.segment));
    return [ring];
  });
  const dots = points.flatMap(point => [
    shape("circle", {cx: place[point][0], cy: place[point][1], r: 7, class: drawn.upgraded.includes(point) ? "measures" : ""}),
    shape("text", {x: place[point][0], y: place[point][1] + (place[point][1] > centre[1] ? 24 : -14)}, point)]);
  svg.replaceChildren(head, ...links, ...curves, ...rings, ...dots);
  return {least, most};
}
