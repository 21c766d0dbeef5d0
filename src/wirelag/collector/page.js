// The page of a collector: all data from its API, new results live. Text is never inserted as HTML.
"use strict";
const agents = {rows: []};
const EVERY = rows => rows <= 100 ? 1 : rows <= 500 ? 2 : 5;  // seconds between two looks at all segments
const reached = {at: null, since: null};  // when the collector answered last, and since when it does not

// ---- agents ----

const AGENT_COLUMNS = [
  {head: "point", named: true, value: agent => agent.point, cell: agent => agent.point},
  {head: "heard", value: agent => agent.silent, cell: agent => { const made = element("span", {}, ageOf(now() - agent.heard)); made.dataset.end = agent.heard; return made; }, bad: agent => !agent.alive, small: agent => agent.alive ? "" : "silent"},
  {head: "clock", named: true, value: agent => agent.clock.source, cell: agent => agent.clock.synchronised ? agent.clock.source : "not synchronised", bad: agent => !agent.clock.synchronised},
  {head: "error", value: agent => agent.clock.synchronised ? agent.clock.error : Infinity, cell: agent => agent.clock.synchronised ? delayOf(agent.clock.error) : "–"},
  {head: "behind", value: agent => Math.abs(agent.behind), cell: agent => delayOf(agent.behind), bad: agent => Math.abs(agent.behind) > 5},
  {head: "packets", value: agent => agent.packets, cell: agent => count(agent.packets)},
  {head: "unseen", value: agent => agent.unseen, cell: agent => count(agent.unseen), bad: agent => agent.unseen > 0},
  {head: "spooled", value: agent => agent.says.spooled, cell: agent => agent.says.spooled === undefined ? "–" : count(agent.says.spooled)},
];
const faults = agent => 4 * !agent.alive + 2 * !agent.clock.synchronised + (Math.abs(agent.behind) > 5) + (agent.unseen > 0);

function drawAgents() {
  const rows = withWords(agents.rows, view.agents_q, agent => agent.point);
  at("health").hidden = !agents.rows.length;
  drawList(at("agents"), at("agents_pages"), {columns: AGENT_COLUMNS, rows, noun: "agents", order: "Worst first", redraw: drawAgents,
    keys: {sort: "agents_sort", up: "agents_up", page: "agents_page"}});
}

async function loadAgents() {
  const found = await ask("/api/v1/agents");
  agents.rows = found.agents.sort((a, b) => faults(b) - faults(a) || (a.point < b.point ? -1 : 1));
  drawAgents();
}

const keptFor = seconds => seconds >= 86400 ? `${count(Math.round(seconds / 86400))} d` : duration(seconds);

async function loadStatus() {
  const status = await ask("/api/v1/status");
  at("foot").textContent = `wirelag ${status.version}; store ${count(Math.round(status.store_bytes / 1048576))} MiB, which keeps intervals for ${keptFor(status.retain.intervals)}, minutes for ${keptFor(status.retain.minutes)} and hours for ${keptFor(status.retain.hours)}, up to ${count(Math.round(status.retain.bytes / 1048576))} MiB; ${count(status.counted.synopsis || 0)} synopses, ${count(status.counted.garbage || 0)} unreadable messages`;
  if (status.topology !== null) await loadNetwork();
  if (!at("path").hidden) await drawPath();
}

// ---- all segments ----

async function loadOverview() {
  const began = Date.now(), found = await ask("/api/v1/overview");
  clock.ahead = found.now - (began + Date.now()) / 2000;
  takeOverview(found.segments);
  if (!view.segment && fleet.rows.length && fleet.rows[0].end !== null) show({segment: fleet.rows[0].segment});
  drawSegments();
  drawHint();
}

// What to do where there is nothing.
function drawHint() {
  const none = !fleet.rows.length;
  at("empty").hidden = !none;
  at("overview").hidden = none;
  if (!none) return;
  at("why").textContent = agents.rows.length ? `Heard: ${agents.rows.slice(0, 5).map(agent => agent.point).join(", ")}. A segment needs an agent at each end; they must name the same segment.` :
    "No agent has reported to this collector. Run one at each end of a segment, for example:";
  at("how").textContent = `wirelag agent --point A --interface eth0 --segment 'A>B' --direction '10.1.0.0/16>10.2.0.0/16' --collector ${location.origin}`;
}

// ---- live ----

function listen() {
  const of = view.segment;
  if (one.source && one.of === of && one.source.readyState !== EventSource.CLOSED) return;
  one.source?.close();
  one.of = of;
  one.source = new EventSource("/api/v1/events" + (of ? `?${new URLSearchParams({segment: of})}` : ""));
  one.source.addEventListener("reports", event => takeReports(JSON.parse(event.data)));
  one.source.addEventListener("error", () => { one.missed = true; });
  one.source.addEventListener("open", () => { if (one.missed) loadOne(); one.missed = false; });  // what came meanwhile
  one.source.addEventListener("topology", () => loadNetwork().catch(() => {}));
}

// How old what is shown is; null if it is not old.
function staleness() {
  if (reached.since !== null) return `The collector has not answered for ${ageOf(Date.now() / 1000 - reached.since)}: what you see is from ${new Date(1000 * reached.since).toLocaleTimeString()}. Trying again.`;
  const newest = fleet.rows.filter(row => row.end !== null).reduce((best, row) => !best || row.end > best.end ? row : best, null);
  if (!newest || now() - newest.end <= OLD.any + 3 * newest.length) return null;
  return `No new results for ${ageOf(now() - newest.end)}, of any segment. The list of agents below shows when each was heard.`;
}

function tellAge() {
  const said = staleness();
  at("stale").hidden = said === null;
  if (said !== null) at("stale").textContent = said;
  at("live").className = `dot ${said !== null ? "off" : reached.at === null ? "" : "on"}`;
  at("said").textContent = reached.since !== null ? "cannot reach the collector" : said !== null ? "no new results" : reached.at === null ? "connecting" : fleet.rows.some(row => row.end !== null) ? "live" : "waiting for results";
  for (const cell of document.querySelectorAll("[data-end]")) cell.textContent = ageOf(now() - Number(cell.dataset.end));
}

async function look() {
  try {
    if (document.hidden) return;
    await loadOverview();
    [reached.at, reached.since] = [Date.now() / 1000, null];
  } catch (error) {
    reached.since ??= reached.at ?? Date.now() / 1000;
  } finally {
    tellAge();
    setTimeout(look, 1000 * EVERY(fleet.rows.length));
  }
}

// Every second; the rest is for those who wait longer.
function tick() {
  tellAge();
  listen();
  refreshOne();
  if (one.fresh) {
    one.fresh = false;
    drawOne();
  }
}

function drawView() {
  for (const id of ["q", "by", "rows", "agents_q"]) at(id).value = view[id];
  drawSegments();
  drawAgents();
  listen();
  return loadOne(true);
}

async function start() {
  readView();
  for (const [id, event] of [["q", "input"], ["by", "change"], ["rows", "change"]]) {
    at(id).addEventListener(event, () => { show({[id]: at(id).value, page: "1", ...(id === "by" ? {in: "", sort: "", up: ""} : {})}); drawSegments(); if (id === "rows") drawAgents(); });
  }
  at("agents_q").addEventListener("input", () => { show({agents_q: at("agents_q").value, agents_page: "1"}); drawAgents(); });
  at("within").addEventListener("click", () => { show({in: "", page: "1"}); drawSegments(); at("q").focus(); });
  at("range").addEventListener("change", takeRange);
  for (const id of ["from", "to"]) at(id).addEventListener("change", takeTimes);
  at("class").addEventListener("change", () => { show({class: at("class").value}); loadOne(true); });
  for (const id of ["source", "target"]) at(id).addEventListener("change", takeEnds);
  for (const id of ["delay", "loss"]) at(id).addEventListener("zoomed", takeZoom);
  addEventListener("popstate", () => { readView(); drawView(); });
  setInterval(tick, 1000);
  const beside = () => Promise.all([loadAgents(), loadStatus()]).catch(() => {}).finally(() => setTimeout(beside, agents.rows.length > 100 ? 15000 : 5000));
  await Promise.all([look(), beside()]);
  await drawView();
  drawHint();
  document.body.dataset.ready = "yes";
}
start().catch(error => { at("said").textContent = error.message; });
