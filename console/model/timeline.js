// When each minion of a batch ran its job, for the pictures of a batch. Pure: times are Unix times in seconds.

import { UNSUCCESSFUL, isGivenUp } from "./batches.js";

/** Most minions that are drawn one by one, and most of them side by side: beyond that there is a heat map. */
const [MOST, MOST_LANES] = [1500, 200];
/** Cells of the heat map, and bars of the distribution. */
export const [COLUMNS, LEVELS, BARS] = [96, 16, 30];
/** Most points of a curve. */
const POINTS = 200;

/** The runs of minions that were sent to, in the order of their start: `[{place, name, state, group, retcode, from, to, ended, bad}]`. */
export function runsOf(members, now) {
  const runs = [];
  for (let place = 0; place < members.names.length; place += 1) {
    const { name, state, group, since, started, retcode } = members.at(place);
    if (!Number.isFinite(started)) continue;
    const ended = state !== "active" && state !== "pending";
    const to = Math.max(started, ended && Number.isFinite(since) ? since : now);
    runs.push({ place, name, state, group, retcode, from: started, to, ended, bad: UNSUCCESSFUL.includes(state) });
  }
  return runs.sort((one, other) => one.from - other.from || one.place - other.place);
}

/**
 * The rows of a timeline, one for each group or stage: `[{label, lanes, bars: [{…run, lane}]}]`. Minions of a lane follow one
 * another, so a row is as high as the most minions that ran at once. Null if there are too many to be drawn one by one.
 * @param {number[]} sizes how many at a time, one for each stage
 */
export function rowsOf(runs, sizes = []) {
  if (runs.length > MOST) return null;
  const rows = new Map();
  let [stage, left] = [0, sizes[0]];
  for (const run of runs) {
    if (run.group === undefined && stage < sizes.length - 1 && left === 0) left = sizes[(stage += 1)];
    left -= 1;
    const label = run.group !== undefined ? String(run.group) : sizes.length > 1 ? `Stage ${stage + 1}` : "";
    if (!rows.has(label)) rows.set(label, { label, ends: [], bars: [] });
    const row = rows.get(label);
    const free = row.ends.findIndex((end) => end <= run.from + 0.05);
    const lane = free < 0 ? row.ends.length : free;
    row.ends[lane] = run.to;
    row.bars.push({ ...run, lane });
  }
  const found = [...rows.values()].map(({ label, ends, bars }) => ({ label, lanes: ends.length, bars }));
  return found.reduce((sum, { lanes }) => sum + lanes, 0) > MOST_LANES ? null : found;
}

/** A heat map: when minions ended, by how long they ran: `{cells: [{x, y, count, bad}], longest, most, givenUp}`. */
export function heatOf(runs, begin, end) {
  const ended = timed(runs).filter((run) => run.ended);
  const longest = Math.max(1e-3, ...chunks(ended.map((run) => run.to - run.from)));
  const cells = new Map();
  for (const run of ended) {
    const x = at(run.to - begin, end - begin, COLUMNS);
    const y = at(run.to - run.from, longest, LEVELS);
    const key = y * COLUMNS + x;
    if (!cells.has(key)) cells.set(key, { x, y, count: 0, bad: 0 });
    const cell = cells.get(key);
    cell.count += 1;
    cell.bad += run.bad ? 1 : 0;
  }
  return { cells: [...cells.values()], longest, most: Math.max(1, ...chunks([...cells.values()].map((cell) => cell.count))), givenUp: runs.filter(isGivenUp).length };
}

/** How long minions ran: `{bars: [{count, bad}], longest, median, ninety}`; null if none has ended. */
export function spreadOf(runs) {
  const ended = timed(runs).filter((run) => run.ended && run.to > run.from);
  if (!ended.length) return null;
  const times = ended.map((run) => run.to - run.from).sort((one, other) => one - other);
  const longest = times.at(-1);
  const bars = Array.from({ length: BARS }, () => ({ count: 0, bad: 0 }));
  for (const run of ended) {
    const bar = bars[at(run.to - run.from, longest, BARS)];
    bar.count += 1;
    bar.bad += run.bad ? 1 : 0;
  }
  const share = (part) => times[Math.min(times.length - 1, Math.floor(part * times.length))];
  return { bars, longest, median: share(0.5), ninety: share(0.9) };
}

/** The runs that took longest, those that go on included. */
export function slowestOf(runs, most = 10) {
  return timed(runs).sort((one, other) => other.to - other.from - (one.to - one.from)).slice(0, most);
}

/** The runs whose time is known: of a minion that was given up it is known how long the batch waited, not how long it ran. */
function timed(runs) {
  return runs.filter((run) => !isGivenUp(run));
}

/** Curves over time: `{ended: [[at, how many, of them bad]], flying: [[at, how many at once]]}`. */
export function curvesOf(members, runs, begin, now) {
  const ends = [];
  for (let place = 0; place < members.names.length; place += 1) {
    const { state, since } = members.at(place);
    if (state !== "active" && state !== "pending" && Number.isFinite(since)) ends.push([since, UNSUCCESSFUL.includes(state)]);
  }
  ends.sort((one, other) => one[0] - other[0]);
  let bad = 0;
  const ended = ends.map(([when, wrong], index) => [when, index + 1, (bad += wrong ? 1 : 0)]);
  let flying = 0;
  const changes = runs.flatMap((run) => [[run.from, 1], ...(run.ended ? [[run.to, -1]] : [])]).sort((one, other) => one[0] - other[0] || one[1] - other[1]);
  const inFlight = changes.map(([when, by]) => [when, (flying += by)]);
  return { ended: thinned([[begin, 0, 0], ...ended], now), flying: thinned([[begin, 0], ...inFlight], now) };
}

/** Few enough points, the last one at `now`. */
function thinned(points, now) {
  const step = Math.max(1, Math.ceil(points.length / POINTS));
  const last = points.at(-1);
  return [...points.filter((_, index) => index % step === 0), last, [Math.max(now, last[0]), ...last.slice(1)]];
}

function at(value, whole, parts) {
  return Math.min(parts - 1, Math.max(0, Math.floor((parts * value) / (whole || 1))));
}

/** The largest of each few values: a call takes no more than some ten thousand arguments. */
function chunks(values) {
  return values.length < 5000 ? values : [values.reduce((one, other) => Math.max(one, other))];
}
