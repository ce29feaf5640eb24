// The minions of one batch, from `batch.minions` and from the events of its job. Built for tens of thousands. Pure.

import { STATES, isMended } from "./batches.js";
import { Followed } from "./followed.js";

const [PENDING, ACTIVE, COMPLETED, FAILED, LOST, OFFLINE, QUEUED] = ["pending", "active", "completed", "failed", "lost", "offline", "queued"].map((state) => STATES.indexOf(state));
/** The order of the table: minions with failures that no retry has mended, then those that run the job, the longest first, those that wait, the others. */
const WORST_FIRST = ["failed", "timed_out", "lost", "killed", "offline", "queued", "active", "pending", "completed"].map((state) => STATES.indexOf(state));
/** States that a return may still change: it may come late, or settle a doubt. */
const OPEN = [PENDING, ACTIVE, LOST, OFFLINE, QUEUED];

export class Members extends Followed {
  constructor() {
    super();
    this.names = [];
    this.states = new Uint8Array(0);
    this.places = new Map();
    this.records = {};
    this.counts = zeros();
  }

  /** Take the result of `batch.minions`. */
  put(records) {
    const names = Object.keys(records);
    // Minions of a group are together, in the order of the groups.
    const groups = new Map([...new Set(names.map((name) => records[name].group))].map((group, rank) => [group, rank]));
    if (groups.size > 1) names.sort((one, other) => groups.get(records[one].group) - groups.get(records[other].group));
    const before = this.names;
    this.names = before.length === names.length && before.every((name, at) => name === names[at]) ? before : names;
    this.records = { ...records };
    this.places = this.names === before ? this.places : new Map(names.map((name, at) => [name, at]));
    this.states = Uint8Array.from(this.names, (name) => stateIndex(records[name].state));
    this.counts = zeros();
    for (const state of this.states) this.counts[STATES[state]] += 1;
  }

  /** Apply an event of the batch's job. It never makes a read necessary: `agrees` shows whether an event was missed. */
  follow(event, now) {
    const sent = { since: now, started: now };
    if (event.kind === "published") for (const name of event.minions) this.#move(name, ACTIVE, [PENDING], sent);
    if (event.kind === "began") this.#move(event.minion, ACTIVE, [PENDING], sent);
    if (event.kind === "returned") this.#move(event.minion, event.failed ? FAILED : COMPLETED, OPEN, { since: now, retcode: event.retcode });
    return false;
  }

  #move(name, state, from, news) {
    const place = this.places.get(name);
    if (place === undefined || !from.includes(this.states[place])) return;
    this.records[name] = { ...this.records[name], ...news, seen: undefined };
    this.counts[STATES[this.states[place]]] -= 1;
    this.counts[STATES[state]] += 1;
    this.states[place] = state;
  }

  stateAt(place) {
    return STATES[this.states[place]];
  }

  /** What is known of the minion at a place: `{name, state, group, since, started, seen, retcode}`. */
  at(place) {
    const name = this.names[place];
    return { ...this.records[name], name, state: this.stateAt(place) };
  }

  /** Whether the counts of an event agree with those that are shown. */
  agrees(data) {
    return STATES.every((state) => !Number.isSafeInteger(data[state]) || data[state] === this.counts[state]);
  }

  /** The names of minions without success on which a retry has succeeded. */
  mended() {
    return new Set(this.names.filter((_, place) => this.#isMended(place)));
  }

  #isMended(place) {
    return isMended({ state: this.stateAt(place), retry_state: this.records[this.names[place]].retry_state });
  }

  /** Unix time since which the minion at a place has run the job; Infinity if that is not known. */
  #began(place) {
    const { since } = this.records[this.names[place]];
    return Number.isFinite(since) ? since : Infinity;
  }

  /** Minions in `states` whose name contains `text`, failures first, up to a limit: `{places, more}`. */
  find(text, states, most) {
    const wanted = text.toLowerCase();
    const found = STATES.map(() => []);
    for (let place = 0; place < this.names.length; place += 1) {
      if (states.size && !states.has(this.stateAt(place))) continue;
      if (!wanted || this.names[place].toLowerCase().includes(wanted)) found[this.#isMended(place) ? COMPLETED : this.states[place]].push(place);
    }
    // Minions with equal times stay in the order of their names.
    found[ACTIVE] = found[ACTIVE].map((place) => [this.#began(place), place]).sort(([one, at], [other, then]) => (one < other ? -1 : one > other ? 1 : at - then))
      .map(([, place]) => place);
    const places = WORST_FIRST.flatMap((state) => found[state]);
    return { places: places.slice(0, most), more: Math.max(0, places.length - most) };
  }
}

function stateIndex(state) {
  const index = STATES.indexOf(state);
  return index < 0 ? PENDING : index;
}

function zeros() {
  return Object.fromEntries(STATES.map((state) => [state, 0]));
}
