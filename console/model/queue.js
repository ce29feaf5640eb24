// The retry queue, from `job_retry.list` and from events. Pure.

import { Followed } from "./followed.js";

/** States of an entry, in the order in which they are shown: first those that need an operator. */
export const STATES = ["held", "dead", "pending", "claimed", "sent", "running", "expired", "cancelled"];
export const PURGEABLE = ["held", "expired", "cancelled", "dead"];
/** The state of an entry after each event; after `done` it is gone. */
const AFTER = { queued: "pending", sent: "sent", held: "held", expired: "expired", cancelled: "cancelled", dead: "dead" };

export function keyOf(entry) {
  return `${entry.jid} ${entry.minion}`;
}

export class Queue extends Followed {
  rows = new Map();

  /** Replace all entries. */
  put(list) {
    this.rows = new Map(list.map((entry) => [keyOf(entry), { ...entry }]));
  }

  /**
   * Apply an event, and return whether the list must be read again: no event says when an entry expires, or that it waits for a
   * window.
   */
  follow(event) {
    const { what, minion, jid } = event;
    const key = keyOf(event);
    if (what === "done") this.rows.delete(key);
    else if (Object.hasOwn(AFTER, what)) {
      const { fun, attempts, reason } = event.data;
      const told = { minion, jid, fun, attempts, reason, state: AFTER[what] };
      this.rows.set(key, { queued_at: null, expires_at: null, waits_for: null, opens_at: null, ...this.rows.get(key), ...told });
    }
    return what !== "done" && what !== "sent";
  }

  counts() {
    const found = Object.fromEntries(STATES.map((state) => [state, 0]));
    for (const { state } of this.rows.values()) if (Object.hasOwn(found, state)) found[state] += 1;
    return found;
  }

  /** Entries in groups: `[{key, entries}]`, first those that need an operator; `by` is `minion` or `jid`. */
  grouped(by) {
    const groups = new Map();
    for (const entry of this.rows.values()) {
      const key = String(entry[by]);
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(entry);
    }
    const rank = (entry) => STATES.indexOf(entry.state);
    for (const entries of groups.values()) entries.sort((one, other) => rank(one) - rank(other) || order(keyOf(one), keyOf(other)));
    return [...groups].map(([key, entries]) => ({ key, entries }))
      .sort((one, other) => rank(one.entries[0]) - rank(other.entries[0]) || order(one.key, other.key));
  }
}

/** Why an entry waits now: its reason tells why it was queued, which no longer counts once it waits for a window. */
export function whyOf({ state, waits_for: window, reason }) {
  return state === "pending" && window ? `waits for ${window}` : reason;
}

/**
 * A group in one line: `{states: [[state, count]], reason, others, since, attempts}`. `reason` is the most frequent one in the
 * state that most needs an operator; `others` counts the other reasons there.
 */
export function gist(entries) {
  const states = STATES.map((state) => [state, entries.filter((entry) => entry.state === state).length]).filter(([, size]) => size);
  const reasons = new Map();
  for (const entry of entries) if (entry.state === entries[0].state) reasons.set(whyOf(entry), (reasons.get(whyOf(entry)) || 0) + 1);
  const [reason] = [...reasons].sort(([, one], [, other]) => other - one)[0];
  const times = entries.map((entry) => entry.queued_at).filter(Number.isFinite);
  return { states, reason, others: reasons.size - 1, since: times.length ? Math.min(...times) : null, attempts: Math.max(...entries.map((entry) => entry.attempts || 0)) };
}

function order(one, other) {
  return one < other ? -1 : one > other ? 1 : 0;
}
