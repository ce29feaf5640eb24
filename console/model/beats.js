// The last sign of life of each engine. Pure: times are arguments.

/** Seconds without a sign of life after which an engine looks dead; it shows one every few seconds. As in the runners. */
const SILENT = 35;

export class Beats {
  #last = new Map();

  /** An engine shows a sign of life. */
  heard(engine, now) {
    this.#last.set(engine, now);
  }

  /** Take from a runner for how many seconds an engine has shown no sign of life, which no event can tell. */
  told(engine, seconds, now) {
    if (seconds > 0) this.#last.set(engine, now - seconds);
  }

  /** When an engine last showed a sign of life; undefined if that is not known. */
  last(engine) {
    return this.#last.get(engine);
  }

  /**
   * For how many seconds an engine has shown no sign of life, if that is too long; 0 if it has, or if that is not known.
   * @param {number} now
   * @param {number} heard when anything last came: a dead connection tells nothing about an engine
   */
  silent(engine, now, heard) {
    const last = this.#last.get(engine);
    return last !== undefined && Math.min(now, heard) - last > SILENT ? now - last : 0;
  }

  /** All silent engines: `[[engine, seconds]]`. */
  allSilent(now, heard) {
    return [...this.#last.keys()].map((engine) => [engine, this.silent(engine, now, heard)]).filter(([, seconds]) => seconds);
  }
}
