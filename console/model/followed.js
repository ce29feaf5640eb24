// What is read once, and follows events from then on. Pure.

/**
 * A subclass has `put(found, now)`, which takes what was read, and `follow(event, now)`, which takes an event and returns whether
 * all should be read again.
 */
export class Followed {
  #heard = null;
  /** Whether it has been read. */
  read = false;

  /** A read begins: what is heard from now on is newer than what it brings, or the same. */
  begin() {
    this.#heard = [];
  }

  /**
   * A read has ended.
   * @returns {boolean} whether it should be read again, for what was heard meanwhile
   */
  take(found, now) {
    const heard = this.#heard ?? [];
    this.#heard = null;
    this.read = true;
    this.put(found, now);
    return heard.map((event) => this.follow(event, now)).some(Boolean);
  }

  /** A read has failed. */
  fail() {
    this.#heard = null;
  }

  /**
   * Take an event.
   * @returns {boolean} whether it should be read again
   */
  hear(event, now) {
    this.#heard?.push(event);
    return this.follow(event, now);
  }
}
