// All segments: their state, worst first; search, groups by site, and the map of what is found.
// Law: colour says how a segment does by objectives that the operator set, never how it compares with others.
"use strict";
const STATES = {  // worst first: mark, colour, what it means
  missed: ["▲", "bad", "misses an objective: the whole 95% interval is beyond it"],
  silent: ["■", "c4", "has had results, and has none now"],
  unsure: ["◆", "c3", "cannot be judged: the 95% interval reaches over the objective, or there is none"],
  unjudged: ["●", "c1", "has no objective"],
  unknown: ["○", "soft", "both points report, but no delay is known"],
  waiting: ["○", "soft", "has no result yet"],
  holds: ["●", "c2", "keeps its objectives"],
  gone: ["○", "soft", "has had no result for a day"],
};
const WORDS_OF = {missed: "missed", silent: "silent", unsure: "unsure", unjudged: "no objective", unknown: "no delay", waiting: "waiting", holds: "holds", gone: "gone"};
const RANK = Object.fromEntries(Object.keys(STATES).map((name, i) => [name, i]));
const OLD = {any: 10, segment: 30, gone: 86400};  // seconds, and three intervals: no result of any segment, of one, for good
const fleet = {rows: [], found: []};
const patience = row => Math.max(OLD.segment, OLD.any + 3 * row.length);

function stateOf(row) {
  if (row.end === null) return "waiting";
  const age = now() - row.end;
  if (age > OLD.gone) return "gone";
  if (age > patience(row)) return "silent";
  if (row.mean === null) return "unknown";
  return row.verdict || (row.objectives.length ? "unsure" : "unjudged");
}

// How bad, within a state: the largest share of an objective, or the delay.
function badness(row) {
  if (row.end === null) return -1;
  const shares = row.objectives.filter(one => one.value !== null).map(one => one.value / one.bound);
  return shares.length ? Math.max(...shares) : row.p99 ?? row.mean ?? -1;
}

const worse = (a, b) => RANK[a.state] - RANK[b.state] || b.badness - a.badness || (a.segment < b.segment ? -1 : 1);

function takeOverview(rows) {
  fleet.rows = rows.map(row => ({...row, state: stateOf(row), badness: badness(row)})).sort(worse);
}

// ---- groups ----

const groupOf = (row, by) => !row.sites ? "elsewhere" : by === "from" ? row.sites[0] : by === "to" ? row.sites[1] : row.sites.join(" > ");

function groupsOf(rows, by) {
  const found = new Map();
  for (const row of rows) {  // worst first, so the first of a group is its worst
    const key = groupOf(row, by), group = found.get(key) || {key, rows: 0, worst: row, loss: null, missed: 0, silent: 0, unsure: 0};
    group.rows += 1;
    if (row.state in group) group[row.state] += 1;
    if (row.loss !== null && row.loss !== undefined) group.loss = Math.max(group.loss ?? 0, row.loss);
    found.set(key, group);
  }
  return [...found.values()];
}

// ---- drawing ----

function stateMark(state) {
  const [mark, colour, meaning] = STATES[state], made = element("span", {class: "state", title: meaning}, `${mark} ${WORDS_OF[state]}`);
  tint(made, colour);
  return made;
}

function segmentLink(row) {
  const made = link(row.segment, {segment: row.segment, class: "", zoom: ""}, () => choose(row.segment));
  made.dataset.key = row.segment;
  return made;
}

// A 95% interval as text; none if it is a point.
function within(row, name) {
  const ends = row.ci95?.[name];
  if (!ends || ends[0] === ends[1]) return "";
  return name === "loss" ? ends.map(shareOf).join(" to ") : interval(...ends);
}

const interval = (low, high) => withInterval(low, low, high).replace(/^.*\(|\)$/g, "");
const brokenBy = row => row.objectives?.filter(one => one.verdict === row.state).map(one => one.objective).join(", ");
const clockOf = row => !row.clock ? "–" : row.clock.synchronised ? `± ${delayOf(row.clock.error)}` : "not synchronised";

function ageCell(row) {
  const made = element("span", {}, row.end === null ? "–" : ageOf(now() - row.end));
  if (row.end !== null) made.dataset.end = row.end;
  return made;
}

const SEGMENT_COLUMNS = [
  {head: "segment", named: true, value: row => row.segment, cell: segmentLink},
  {head: "state", left: true, value: row => -RANK[row.state], cell: row => stateMark(row.state), small: row => brokenBy(row), title: row => row.reason},
  {head: "mean", value: row => row.mean, cell: row => delayOf(row.mean), small: row => within(row, "mean"), title: row => row.mean === null && row.reason},
  {head: "p99", value: row => row.p99, cell: row => delayOf(row.p99), small: row => within(row, "p99"), title: row => row.p99 === null && "too few delays in a minute for a p99: it takes about 400"},
  {head: "loss", value: row => row.loss, cell: row => shareOf(row.loss), small: row => within(row, "loss"), title: row => row.loss === null && (row.reason || "not known yet")},
  {head: "clock", value: row => row.clock ? row.clock.synchronised ? row.clock.error : Infinity : null, cell: clockOf, bad: row => row.clock && !row.clock.synchronised,
    title: row => !row.clock && "no interval was seen by both points"},
  {head: "unseen", value: row => row.unseen, cell: row => row.unseen === undefined ? "–" : count(row.unseen), bad: row => row.unseen > 0, title: row => row.unseen > 0 && "packets that captures dropped"},
  {head: "age", value: row => row.end === null ? null : -row.end, cell: ageCell, bad: row => row.state === "silent"},
];

const GROUP_COLUMNS = [
  {head: "site", named: true, value: group => group.key, cell: group => {
    const made = link(group.key, {in: group.key, page: "1"}, () => { show({in: group.key, page: "1"}); drawSegments(); });
    made.dataset.key = group.key;
    return made;
  }},
  {head: "segments", value: group => group.rows, cell: group => count(group.rows)},
  ...["missed", "silent", "unsure"].map(state => ({head: state, value: group => group[state], cell: group => count(group[state]), bad: group => state === "missed" && group.missed > 0})),
  {head: "worst segment", named: true, left: true, value: group => group.worst.segment, cell: group => segmentLink(group.worst), small: group => WORDS_OF[group.worst.state]},
  {head: "its mean", value: group => group.worst.mean, cell: group => delayOf(group.worst.mean), small: group => within(group.worst, "mean")},
  {head: "its p99", value: group => group.worst.p99, cell: group => delayOf(group.worst.p99), small: group => within(group.worst, "p99")},
  {head: "most loss", value: group => group.loss, cell: group => shareOf(group.loss)},
];

const KEYS = {sort: "sort", up: "up", page: "page"};

function drawSegments() {
  const inside = view.in ? fleet.rows.filter(row => groupOf(row, view.by || "pair") === view.in) : fleet.rows;
  const named = withWords(inside, view.q, row => row.segment);
  drawStates(named);
  fleet.found = view.state ? named.filter(row => row.state === view.state) : named;
  at("within").hidden = !view.in;
  at("within").textContent = `${view.in} ×`;
  at("within").setAttribute("aria-label", `Show all sites again, not only ${view.in}`);
  const grouped = view.by && !view.in;
  const list = grouped ? {columns: GROUP_COLUMNS, rows: groupsOf(fleet.found, view.by), noun: "groups"} :
    {columns: SEGMENT_COLUMNS, rows: fleet.found, noun: "segments", mark: (made, row) => { if (row.segment === view.segment) made.className = "chosen"; }};
  drawList(at("segments"), at("pages"), {...list, keys: KEYS, order: "Worst first", redraw: drawSegments});
  const judged = fleet.rows.some(row => row.objectives?.length);
  at("judged").textContent = `Figures are of the last minute, with 95% intervals below them. ` + (judged ? "Colours say how segments keep the objectives that the collector was given (slo)." :
    "No objectives are set: give the collector some, --slo 'p99<20ms' --slo 'loss<0.1%', and colours say which segments keep them.");
  drawFound();
}

function drawFound() {
  const few = isReadable(fleet.found, network.now);
  at("drawn").hidden = !few || !fleet.found.length;
  at("unmapped").textContent = few ? "" : `The map shows at most ${MAP_POINTS} points and ${MAP_SEGMENTS} segments: search, or choose a state or a site, and it is drawn.`;
  if (few) drawMap(at("map"), fleet.found, view.segment, choose, network.now);
}

// A button for each state that there is, with its number.
function drawStates(rows) {
  const focused = at("states").contains(document.activeElement) ? document.activeElement.dataset.state : undefined;
  const numbers = new Map();
  for (const {state} of rows) numbers.set(state, (numbers.get(state) || 0) + 1);
  if (view.state && !numbers.has(view.state)) numbers.set(view.state, 0);
  const button = (state, text, content) => {
    const made = element("button", {type: "button", "aria-pressed": view.state === state, "data-state": state, title: state ? STATES[state][2] : "all states"});
    made.append(content, text);
    made.addEventListener("click", () => { show({state: view.state === state ? "" : state, page: "1"}); drawSegments(); });
    return made;
  };
  const known = Object.keys(STATES).filter(state => numbers.has(state));
  at("states").replaceChildren(button("", ` ${count(rows.length)}`, "all"), ...known.map(state => button(state, ` ${count(numbers.get(state))}`, stateMark(state))));
  if (focused !== undefined) [...at("states").children].find(one => one.dataset.state === focused)?.focus();
}
