// The page of a collector: all data from its API, new results live. Text is never inserted as HTML.
"use strict";
const at = id => document.getElementById(id);
const state = {segments: [], chosen: null, reports: [], resolution: "interval", drawn: 0, network: null};
const delayOf = seconds => seconds === null || seconds === undefined ? "–" : duration(seconds);
const shareOf = share => share === null || share === undefined ? "–" : `${Number((100 * share).toPrecision(3))}%`;

function clear(...charts) {
  for (const id of charts) {
    at(id).replaceChildren();
    delete at(id).chart;
  }
}

async function ask(path, parameters) {
  const answer = await fetch(path + (parameters ? "?" + new URLSearchParams(parameters) : ""));
  if (answer.status === 401) location.reload();
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error);
  return content;
}

function row(cells, bad = []) {
  const made = document.createElement("tr");
  cells.forEach((text, i) => {
    const cell = document.createElement("td");
    cell.textContent = text;
    if (bad.includes(i)) cell.className = "bad";
    made.append(cell);
  });
  return made;
}

// ---- segments ----

function drawSegments() {
  const {least, most} = drawMap(at("map"), state.segments, state.chosen, choose, state.network);
  at("segments").tBodies[0].replaceChildren(...state.segments.map(segment => {
    const latest = segment.latest, now = Date.now() / 1000;
    const unseen = latest ? latest.unseen.upstream + latest.unseen.downstream : 0;
    const clock = !latest ? "–" : latest.clock.synchronised ? `± ${delayOf(latest.clock.error)}` : "not synchronised";
    const made = latest ? row([segment.segment, delayOf(latest.mean), delayOf(latest.quantiles["0.99"]), shareOf(segment.loss), clock, count(unseen), delayOf(Math.max(0, now - latest.end))],
      [...(latest.clock.synchronised ? [] : [4]), ...(unseen ? [5] : []), ...(now - latest.end > 30 ? [6] : [])]) : row([segment.segment, "–", "–", "–", "–", "–", "–"]);
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = colourOf(latest ? latest.mean : null, least, most);
    made.cells[0].prepend(swatch);
    made.dataset.segment = segment.segment;
    if (latest && latest.reason) made.title = latest.reason;
    if (segment.segment === state.chosen) made.className = "chosen";
    made.addEventListener("click", () => choose(segment.segment));
    return made;
  }));
}

async function loadSegments() {
  state.segments = (await ask("/api/v1/segments")).segments;
  for (const segment of state.segments) segment.loss = segment.settled ? segment.settled.loss : null;
  drawSegments();
  if (state.chosen === null && state.segments.length) await choose(state.segments[0].segment);
}

// ---- one segment over time ----

async function choose(name) {
  const changed = state.chosen !== name;
  state.chosen = name;
  at("one").hidden = false;
  at("name").textContent = name;
  if (changed) {
    const classes = (state.segments.find(s => s.segment === name) || {classes: []}).classes;
    at("class").replaceChildren(...["", ...classes].map(key => new Option(key || "all", key)));
  }
  const range = Number(at("range").value), now = Date.now() / 1000;
  state.resolution = range <= 3600 ? "interval" : range <= 604800 ? "minute" : "hour";
  const parameters = {segment: name, resolution: state.resolution, from: now - range, limit: 10000};
  if (at("class").value) parameters.class = at("class").value;
  try {
    state.reports = (await ask("/api/v1/reports", parameters)).reports;
  } catch (error) {
    state.reports = [];
  }
  clear("delay", "loss");  // what was zoomed was something else
  drawSegments();
  drawReports();
}

const sums = orders => orders.reduce((all, one) => one ? {checked: all.checked + one.checked, overtaken: all.overtaken + one.overtaken} : all, {checked: 0, overtaken: 0});

// Unobserved time is a gap, never a line across it.
function series(reports, name, colour, value, more = {}) {
  const x = [], y = [];
  reports.forEach((report, i) => {
    if (i && report.start - reports[i - 1].end > 1e-6) { x.push(500 * (report.start + reports[i - 1].end)); y.push(null); }
    x.push(500 * (report.start + report.end));
    y.push(value(report));
  });
  return {draw: "line", name, colour, width: 1.5, x, y, ...(reports.length < 40 ? {mark: "circle", size: 2.5} : {}), ...more};
}

const upTo = (kind, title, values, least) => ({kind, title, range: [values.reduce((a, b) => Math.min(a, b), 0), 1.05 * values.reduce((a, b) => Math.max(a, b), least)]});
const present = (...lists) => lists.flat().filter(value => value !== null && value !== undefined);

function drawReports() {
  const reports = state.reports, last = reports[reports.length - 1], known = reports.filter(r => r.lost !== null).pop();
  at("about").textContent = !last ? "No results for this time." : last.mean === null ? `Latest: no delay. ${last.reason || ""}` :
    `Latest: mean ${delayOf(last.mean)}` + (last.ci95.mean ? ` (95%: ${delayOf(last.ci95.mean[0])} to ${delayOf(last.ci95.mean[1])}, clocks ± ${delayOf(last.clock.error)})` : last.clock.synchronised ? "" : ", clocks are not synchronised: no interval") +
    (last.sent === null ? `; ${count(last.received)} packets received, ${count(last.used)} of them between references` + (last.references ? `; ${count(last.references.received)} references received, ${count(last.references.lost)} lost` : "") : `; ${count(last.sent)} packets sent`) + (last.lost === null ? known ? `; ${count(Math.round(known.lost))} of ${count(known.sent)} packets lost in the latest settled interval` : `; loss unknown: ${last.reason || "not yet"}` : `, ${count(Math.round(last.lost))} lost`) + (last.unseen.upstream + last.unseen.downstream ? `; captures missed ${count(last.unseen.upstream + last.unseen.downstream)}` : "");
  const order = sums(reports.map(r => r.order));
  if (order.checked) at("about").textContent += `. Over this time ${shareOf(order.overtaken / order.checked)} of packets arrived right after a later one (${count(order.overtaken)} of ${count(order.checked)} checked).`;
  document.body.dataset.drawn = state.drawn += 1;
  if (!last) return clear("delay", "loss");
  const time = {kind: "time", local: true, range: [1e3 * reports[0].start, 1e3 * last.end]}, bound = i => r => r.ci95.mean ? r.ci95.mean[i] : null;
  const ends = {low: series(reports, "", "c1", bound(0)).y, high: series(reports, "", "c1", bound(1)).y};
  const delays = [series(reports, "mean (95% band)", "c1", r => r.mean, ends),
    ...[["p50", "0.5", "c2"], ["p90", "0.9", "c3"], ["p99", "0.99", "c4"]].map(([name, q, colour]) => series(reports, name, colour, r => r.quantiles[q]))].filter((one, i) => !i || present(one.y).length);
  drawChart(at("delay"), {x: time, hover: "x", panels: [{series: delays, y: upTo("delay", "delay", present(...delays.map(one => one.y), ends.low, ends.high), 1e-9)}]});
  const losses = [series(reports, "loss", "bad", r => r.loss)];
  if (reports.some(r => r.references)) losses.push(series(reports, "loss of references", "c3", r => r.references ? r.references.lost / (r.references.received + r.references.lost) : null));
  const uncovered = series(reports, "time not covered by both", "soft", r => 1 - r.covered, {fill: true, mark: null});
  drawChart(at("loss"), {x: time, hover: "x", panels: [
    {series: losses, tall: 3, y: upTo("share", "loss", present(...losses.map(one => one.y)), 1e-3)},
    {series: [uncovered], tall: 2, y: {kind: "share", title: "not covered", range: [0, 1.05]}}]});
}

// ---- path ----

async function drawPath() {
  const [source, target] = [at("source").value, at("target").value];
  if (!source || !target || source === target) return;
  try {
    const path = await ask("/api/v1/path", {source, target});
    const parts = path.segments, blamed = path.culprits;
    at("verdict").textContent = (path.mean === null ? "Not every segment is measured." : `Mean ${delayOf(path.mean)}.`) + (blamed.length ? ` Slow: ${blamed.join(", ")}.` : " No segment is slow.") + (path.missing.length ? ` Without a report: ${path.missing.join(", ")}.` : "");
    drawWaterfall(parts);
  } catch (error) {
    at("verdict").textContent = error.message;
    clear("waterfall");
  }
}

// A row for each segment, from where the one before it ends, and one for the sum.
function drawWaterfall(parts) {
  const values = parts.map(part => (part.mean || 0) * (part.share === undefined ? 1 : part.share));
  const base = values.map((_, i) => values.slice(0, i).reduce((sum, value) => sum + value, 0));
  const all = values.reduce((sum, value) => sum + value, 0), ends = base.map((from, i) => from + values[i]);
  const bars = {draw: "bars", along: "x", x: [...values, all], base: [...base, 0], y: [...values.keys(), values.length],
    colour: "c1", colours: [...values.map(() => "c1"), "soft"], says: "mean"};
  at("waterfall").style.height = `${70 + 30 * bars.x.length}px`;
  drawChart(at("waterfall"), {x: upTo("delay", "delay since the path began", [...ends, all], 1e-9),
    panels: [{series: [bars], y: {kind: "rows", names: [...parts.map(part => part.segment), "all"]}}]});
}

// ---- agents ----

async function loadAgents() {
  const {agents} = await ask("/api/v1/agents");
  at("agents").tBodies[0].replaceChildren(...agents.map(agent => row(
    [agent.point, agent.alive ? `${delayOf(agent.silent)} ago` : `silent for ${delayOf(agent.silent)}`, agent.clock.synchronised ? agent.clock.source : "not synchronised", delayOf(agent.clock.error), delayOf(agent.behind), count(agent.packets), count(agent.unseen), agent.says.spooled === undefined ? "–" : count(agent.says.spooled)],
    [...(agent.alive ? [] : [1]), ...(agent.clock.synchronised ? [] : [2]), ...(Math.abs(agent.behind) > 5 ? [4] : []), ...(agent.unseen ? [6] : [])])));
}

async function loadStatus() {
  const status = await ask("/api/v1/status");
  at("foot").textContent = `wirelag ${status.version}; store ${count(Math.round(status.store_bytes / 1048576))} MiB; ${count(status.counted.synopsis || 0)} synopses, ${count(status.counted.garbage || 0)} unreadable messages`;
  if (status.topology !== null) await loadNetwork();
  if (!at("path").hidden) await drawPath();
}

// ---- the network ----

const WORDS = {links_up: "links up", links_down: "links down", costs: "costs changed", routers: "routers added or removed", upgraded: "now measuring",
  no_longer: "no longer measuring", new: "new segments", gone: "removed segments", rerouted: "rerouted"};

async function loadNetwork() {
  const network = await ask("/api/v1/topology"), before = state.network;
  state.network = network;
  if (!before || String(before.routers) !== String(network.routers)) {
    for (const id of ["source", "target"]) {
      const chosen = at(id).value;
      at(id).replaceChildren(...network.routers.map(name => new Option(name, name)));
      if (network.routers.includes(chosen)) at(id).value = chosen;
      else if (id === "target") at(id).selectedIndex = network.routers.length - 1;
    }
    at("path").hidden = false;
  }
  at("network").hidden = !network.follows;
  at("routing").textContent = network.problem ? `Cannot read the topology; showing the last one: ${network.problem}` :
    `${count(network.routers.length)} routers, ${count(network.upgraded.length)} of them measure, ${count(network.segments.length)} segments by reference packets.`;
  at("changes").tBodies[0].replaceChildren(...network.changes.map(change => row([new Date(1000 * change.at).toLocaleString(),
    Object.entries(WORDS).filter(([name]) => change[name].length).map(([name, word]) => `${word}: ${change[name].slice(0, 8).join(", ")}${change[name].length > 8 ? ", …" : ""}`).join("; ")])));
  state.stale = true;
}

// ---- live ----

function take(said) {
  for (const {segment, report} of said) {
    const known = state.segments.find(s => s.segment === segment);
    if (!known) { loadSegments(); return; }
    if (!known.latest || report.start >= known.latest.start) known.latest = report;
    if (report.loss !== null) known.loss = report.loss;
    if (segment === state.chosen && state.resolution === "interval" && !at("class").value) {
      const place = state.reports.findIndex(r => r.start >= report.start);
      if (place < 0) state.reports.push(report);
      else state.reports.splice(place, state.reports[place].start === report.start ? 1 : 0, report);
      state.fresh = true;
    }
  }
  state.stale = true;
}

function listen() {
  const source = new EventSource("/api/v1/events");
  source.onopen = () => { at("live").className = "dot on"; at("said").textContent = "live"; };
  source.onerror = () => { at("live").className = "dot off"; at("said").textContent = "cannot reach the collector; retrying"; };
  source.addEventListener("reports", event => take(JSON.parse(event.data)));
  source.addEventListener("topology", () => loadNetwork().catch(() => {}));
}

async function start() {
  for (const id of ["range", "class"]) at(id).addEventListener("change", () => choose(state.chosen));
  for (const id of ["source", "target"]) at(id).addEventListener("change", drawPath);
  listen();
  await Promise.all([loadSegments(), loadAgents(), loadStatus()]);
  document.body.dataset.ready = "yes";
  setInterval(() => { if (state.stale) { state.stale = false; drawSegments(); } if (state.fresh) { state.fresh = false; drawReports(); } }, 500);
  setInterval(() => Promise.all([loadAgents(), loadStatus()]).catch(() => {}), 5000);
}
start().catch(error => { at("said").textContent = error.message; });
