// Numbers as text, and the axes of charts: where a value lies, and which values have a mark.
"use strict";

// ---- numbers as text, as wirelag.units writes them ----

const DELAYS = [["ns", 1e-9, 1e-6], ["us", 1e-6, 1e-3], ["ms", 1e-3, 1], ["s", 1, 120], ["min", 60, 7200],
  ["h", 3600, 172800], ["days", 86400, Infinity]];  // unit, its seconds, below this
const SHORT_DELAYS = DELAYS.slice(0, 4);  // beside an axis: nothing is longer than seconds
const SIZES = [["B", 1, 1e3], ["kB", 1e3, 1e6], ["MB", 1e6, 1e9], ["GB", 1e9, Infinity]];

const fixed = (x, digits) => x.toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits});
const threeDigits = x => fixed(x, Math.abs(x) >= 99.95 || Number.isInteger(x) ? 0 : Math.abs(x) >= 9.995 ? 1 : 2);
const unitOf = (x, units) => units.find(([, , limit]) => Math.abs(x) < 0.9995 * limit) || units[units.length - 1];

const decimals = width => 0 < width && width < 5 ? Math.min(6, Math.ceil(-Math.log10(width / 5))) : 0;

// A number with three digits, and with at least as many as an interval of this width needs.
function shortAndLong(x, units, width) {
  const [unit, factor] = unitOf(x, units), number = Number((x / factor).toPrecision(12));
  const short = threeDigits(number), needed = decimals(width / factor);
  const long = needed <= (short.split(".")[1] || "").length ? short : fixed(number, needed);
  const same = long.startsWith(short) && /^[.0]*$/.test(long.slice(short.length));  // more digits are all 0
  return {short: `${short} ${unit}`, long: `${long} ${unit}`, same};
}

const inUnit = (x, units) => shortAndLong(x, units, Infinity).short;

const duration = seconds => inUnit(seconds, DELAYS);

// A delay with its interval; where both ends have the same unit, it is said once.
function withInterval(seconds, low, high) {
  const [text, ...ends] = [seconds, low, high].map(x => shortAndLong(x, DELAYS, high - low));
  const [from, to] = ends.map(end => ends.every(one => one.same) ? end.short : end.long);
  const [number, unit] = from.split(" ");
  return `${text.same ? text.short : text.long} (${!low || to.endsWith(` ${unit}`) ? number : from} to ${to})`;
}

const percent = share => `${Number((100 * share).toPrecision(5))}%`;
const count = number => number.toLocaleString("en");

const MINUTE = 60e3, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
const zoned = (ms, spec) => new Date(spec.local ? ms - new Date(ms).getTimezoneOffset() * MINUTE : ms).toISOString();

function moment(ms, spec) {
  return zoned(ms, spec).replace("T", " ").replace(/(\.000)?Z$/, "");
}

// ---- kinds of axes: how one value is said ----

const SAY = {
  delay: duration,
  share: percent,
  bytes: size => inUnit(size, SIZES),
  count: x => count(Number(x.toPrecision(6))),
  seconds: x => `${Number(x.toPrecision(7))} s`,
  time: moment,
  rows: (row, spec) => spec.names[Math.round(row)] ?? "",
  hidden: () => "",
};

// ---- scales: from a value to a place, and back ----

function scaleOf(spec) {
  if (spec.scale === "log") return [x => Math.log10(Math.max(x, 1e-12)), place => 10 ** place];
  if (spec.scale === "signed") return [x => Math.asinh(x / spec.linear), place => Math.sinh(place) * spec.linear];
  return [x => x, place => place];
}

// ---- marks: each a value with its text ----

function roundSteps(low, high, most) {
  const least = (high - low) / Math.max(most, 1), power = 10 ** Math.floor(Math.log10(least));
  const step = power * [1, 2, 5, 10].find(factor => factor * power >= least * (1 - 1e-9));
  const values = [];
  for (let k = Math.ceil(low / step - 1e-6); k <= high / step + 1e-6; k++) values.push(Number((k * step).toPrecision(12)));
  return [values, step];
}

function powers(low, high, factors) {
  const values = [];
  if (!(low > 0)) return values;
  for (let k = Math.floor(Math.log10(low)); k <= Math.log10(high); k++) {
    for (const factor of factors) values.push(Number(`${factor}e${k}`));
  }
  return values.filter(x => x >= low * (1 - 1e-9) && x <= high * (1 + 1e-9));
}

function logValues(low, high, most) {
  const fit = [[1, 2, 5], [1, 3], [1]].map(factors => powers(low, high, factors)).find(values => values.length <= most);
  if (fit) return fit.length > 2 || high / low >= 10 ? fit : null;  // null: too short for powers of ten
  const decades = powers(low, high, [1]), every = Math.ceil(decades.length / most);
  return decades.filter(x => Math.round(Math.log10(x)) % every === 0);
}

function signedValues(low, high, most, place, linear) {
  if (low > 0 || high < 0 || place(high) - place(low) < 1) return null;
  const sizes = factors => powers(linear / 10, Math.max(-low, high), factors).reverse().flatMap(size => [size, -size]);
  const least = (place(high) - place(low)) / most, kept = [];
  for (const x of [0, ...sizes([1]), ...sizes([2, 5])]) {
    if (x >= low && x <= high && kept.every(y => Math.abs(place(x) - place(y)) >= least)) kept.push(x);
  }
  return kept.sort((a, b) => a - b);
}

// One unit for all, and as many digits as the step needs.
function linearTexts(values, step, spec) {
  const units = {delay: SHORT_DELAYS, bytes: SIZES, share: [["%", 0.01, Infinity]]}[spec.kind] || [["", 1, Infinity]];
  const [unit, factor] = unitOf(Math.max(...values.map(Math.abs), step), units);
  const digits = Math.min(20, Math.max(0, -Math.floor(Math.log10(step / factor) + 1e-6)));
  const space = unit === "%" ? "" : " ";
  return values.map(x => x === 0 && unit !== "%" ? "0" : `${fixed(x / factor, digits)}${space}${unit}`.trim());
}

const TIME_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 10e3, 15e3, 30e3, MINUTE, 2 * MINUTE, 5 * MINUTE,
  10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY];

function timeMarks(low, high, most, spec) {
  const step = TIME_STEPS.find(one => (high - low) / one <= most);
  const shift = spec.local ? -new Date(low).getTimezoneOffset() * MINUTE : 0;
  const values = [];
  if (step) {
    for (let k = Math.ceil((low + shift) / step); k <= (high + shift) / step; k++) values.push(k * step - shift);
  } else {
    const months = Math.ceil((high - low) / (30 * DAY) / most), first = new Date(low + shift);
    for (let month = first.getUTCMonth() + 1; ; month += months) {
      const at = Date.UTC(first.getUTCFullYear(), month) - shift;
      if (at > high) break;
      values.push(at);
    }
  }
  let day = "";
  return values.map(value => {
    const [date, time] = zoned(value, spec).slice(0, -1).split("T");
    if (!step || step >= DAY) return {value, text: date};
    const below = date === day ? "" : day = date;
    return {value, text: step < 1000 ? time : step < MINUTE ? time.slice(0, 8) : time.slice(0, 5), below};
  });
}

function marksOf(spec, low, high, most, place) {
  if (spec.kind === "hidden") return [];
  if (spec.kind === "rows") return spec.names.map((text, value) => ({value, text}));
  if (spec.kind === "time") return timeMarks(low, high, most, spec);
  const values = spec.scale === "log" ? logValues(low, high, most) :
    spec.scale === "signed" ? signedValues(low, high, most, place, spec.linear) : null;
  const say = spec.kind === "delay" ? x => inUnit(x, SHORT_DELAYS) : SAY[spec.kind];
  if (values) return values.map(value => ({value, text: value ? say(value, spec) : "0"}));
  let [round, step] = roundSteps(low, high, most);
  if (spec.whole && step < 1) [round, step] = [round.filter(Number.isInteger), 1];
  const least = 0.7 * (place(high) - place(low)) / most, kept = [];  // round steps crowd where a scale is narrow
  for (const x of round) if (!kept.length || place(x) - place(kept[kept.length - 1]) >= least) kept.push(x);
  const texts = linearTexts(kept, step, spec);
  return kept.map((value, i) => ({value, text: texts[i]}));
}

// An axis between two pixels; `most` marks have room.
function makeAxis(spec, [low, high], from, to, most) {
  const [place, value] = scaleOf(spec), first = place(low), length = place(high) - first || 1;
  return {
    spec,
    at: x => from + (place(x) - first) / length * (to - from),
    back: pixel => value(first + (pixel - from) / (to - from) * length),
    say: x => SAY[spec.kind](x, spec),
    marks: marksOf(spec, low, high, Math.max(2, Math.floor(most)), place),
  };
}
