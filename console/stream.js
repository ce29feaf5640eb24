// The event stream of salt-api: hands on each event that is wanted, and reconnects after an outage.

import { LoggedOut } from "./api.js";
import { parse } from "./json.js";

/** Seconds before it connects again; twice as long each time, up to the longest. */
const SHORTEST = 1;
const LONGEST = 30;
/** Seconds without an event after which a page that becomes visible again counts the connection as dead. */
const SILENCE = 30;
/**
 * Events a second that are many, if they come for so many seconds. salt-api and the master spend some 7 ms on each event for each
 * page that listens, so the page then stops listening for REST seconds and reads; after that it listens for a moment.
 */
const MANY = 5;
const LONG = 5;
const MOMENT = 1;
const REST = 10;
/** Most characters of an incomplete event. */
const MOST = 64 * 1024 * 1024;

/**
 * Parses the stream as it comes in (Server-sent events). salt-api adds a `tag:` line before the `data:` line, so unwanted events
 * need not be decoded.
 */
export class Parser {
  #left = [];
  #held = 0;

  constructor(wants, take) {
    this.wants = wants;
    this.take = take;
    /** Events so far, but for calls of runners (the pages' own are among them) and what engines say of themselves. */
    this.count = 0;
  }

  feed(text) {
    const lines = text.split("\n");
    const rest = lines.pop();
    if (lines.length) {
      // An event of some megabytes comes in many pieces, which are joined only once.
      lines[0] = this.#left.join("") + lines[0];
      [this.#left, this.#held] = [[], 0];
    }
    this.#left.push(rest);
    this.#held += rest.length;
    if (this.#held > MOST) throw new Error("an event without an end");
    for (const line of lines) this.#line(line.endsWith("\r") ? line.slice(0, -1) : line);
  }

  #line(line) {
    if (line.startsWith("tag: ")) {
      this.tag = line.slice(5);
      if (!/^(salt\/run|saltext\/jobs)\//.test(this.tag)) this.count += 1;
    } else if (line.startsWith("data: ") && this.tag !== undefined && this.wants(this.tag)) this.#event(line.slice(6));
    if (!line) this.tag = undefined;
  }

  #event(text) {
    let event;
    try {
      event = parse(text);
    } catch {
      return;
    }
    if (event && typeof event.tag === "string" && event.data && typeof event.data === "object") this.take(event.tag, event.data);
  }
}

/** Many events come. */
class Busy extends Error {}

export class Stream {
  /**
   * @param {Api} api
   * @param {object} listener `wants(tag)`, `take(tag, data)`, `opened()`, `lost(reason)`, `loggedOut()`
   */
  constructor(api, listener) {
    Object.assign(this, { api, listener });
    /** When the stream last showed a sign of life: Unix time of this machine. */
    this.heard = null;
    this.open = false;
    this.closed = false;
    /** Whether an engine has been heard on the present connection: it must then be heard every few seconds. */
    this.alive = false;
    this.pause = SHORTEST;
    /** Whether many events have come: then it listens only for moments. */
    this.busy = false;
    this.wake = () => this.#wake();
    // A browser keeps a page that was left for the way back, and its connections too.
    this.leave = () => {
      this.left = true;
      this.again("the page was left");
    };
    window.addEventListener("pagehide", this.leave);
    window.addEventListener("pageshow", this.wake);
    document.addEventListener("visibilitychange", this.wake);
    window.addEventListener("online", this.wake);
    this.run();
  }

  async run() {
    while (!this.closed) {
      this.abort = new AbortController();
      this.alive = false;
      let why = "The event stream has ended";
      try {
        await this.#follow(await this.api.events(this.abort.signal));
      } catch (error) {
        if (error instanceof LoggedOut && !this.closed) {
          this.close();
          this.listener.loggedOut();
        }
        why = error instanceof Busy ? "" : error.message;
      } finally {
        this.abort.abort(); // if a bad event ended the loop, the connection is still open
      }
      if (this.closed) return;
      this.open = false;
      if (why) this.listener.lost(why);
      await this.#wait(why ? this.#longer() : REST);
    }
  }

  async #follow(reader) {
    const decoder = new TextDecoder();
    const parser = new Parser((tag) => this.listener.wants(tag), (tag, data) => this.listener.take(tag, data));
    let since = Date.now() / 1000;
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      this.heard = Date.now() / 1000;
      if (!this.open) {
        // salt-api sends its first line once it listens on the bus: no later event is missed.
        this.open = true;
        this.pause = SHORTEST;
        this.listener.opened();
      }
      parser.feed(decoder.decode(value, { stream: true }));
      const passed = this.heard - since;
      if (passed < (this.busy ? MOMENT : LONG)) continue;
      this.busy = parser.count > MANY * passed;
      if (this.busy) throw new Busy();
      [since, parser.count] = [this.heard, 0];
    }
  }

  #longer() {
    const seconds = this.pause;
    this.pause = Math.min(this.pause * 2, LONGEST);
    return seconds;
  }

  #wait(seconds) {
    return new Promise((go) => {
      this.go = go;
      // Spread out, so that not all pages come back at one moment. A page that nobody sees need not know what happens.
      if (!this.left && !(this.busy && document.hidden)) setTimeout(go, seconds * (0.75 + Math.random() / 2) * 1000);
    });
  }

  /** The page is visible again: a machine that slept does not notice that its connection is gone. */
  #wake() {
    if (this.closed || document.hidden) return;
    this.left = false;
    if (this.open && Date.now() / 1000 - this.heard > SILENCE) this.again("nothing has come for a while");
    this.pause = SHORTEST;
    this.go?.();
  }

  /** Give up the connection, and connect again. */
  again(why) {
    this.abort.abort(new Error(why));
  }

  close() {
    this.closed = true;
    window.removeEventListener("pagehide", this.leave);
    window.removeEventListener("pageshow", this.wake);
    document.removeEventListener("visibilitychange", this.wake);
    window.removeEventListener("online", this.wake);
    this.abort?.abort();
    this.go?.();
  }
}
