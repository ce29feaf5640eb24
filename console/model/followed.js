// Data that is read once and follows events from then on. Pure.

/**
 * A subclass has `put(found, now)`, which takes the result of a read, and `follow(event, now)`, which takes an event and returns
 * whether to read again.
 */
export class Followed {
  #heard = null;
  /** Whether it has been read. */
  read = false;

  /** A read begins: events from now on are at least as new as its result. */
  begin() {
    this.#heard = [];
  }

  /**
   * A read has ended.
   * @returns {boolean} whether to read again because of events that came meanwhile
   */
  take(found, now) {
    const heard = this.#heard ?? [];
    this.#heard = null;
    this.read = true;
    this.put(found, now);
    return heard.map(([event, at]) => this.follow(event, at)).some(Boolean);
  }

  /** A read has failed. */
  fail() {
    this.#heard = null;
  }

  /**
   * Take an event.
   * @returns {boolean} whether to read again
   */
  hear(event, now) {
    this.#heard?.push([event, now]);
    return this.follow(event, now);
  }
}
