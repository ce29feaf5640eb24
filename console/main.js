// The page: the login, the view that is shown, and its events. A view is read when it is opened, and follows events from then on.

import { Api, Away, Denied, LoggedOut, findApi, foretold } from "./api.js";
import { messages, tell, warn } from "./dialog.js";
import { el, replace, say, set } from "./dom.js";
import { ago, duration, moment } from "./format.js";
import { Beats } from "./model/beats.js";
import { meaning, wants } from "./model/events.js";
import { forget, keep, kept } from "./session.js";
import { Stream } from "./stream.js";
import { BatchView } from "./views/batch.js";
import { BatchesView } from "./views/batches.js";
import { HealthView } from "./views/health.js";
import { JobView } from "./views/job.js";
import { JobsView } from "./views/jobs.js";
import { loginForm } from "./views/login.js";
import { QueueView } from "./views/queue.js";
import { StartView } from "./views/start.js";

/** For each `#/…`: the view, and its heading in the menu. */
const ROUTES = [
  [/^$/, BatchesView, "batches"],
  [/^batches$/, BatchesView, "batches"],
  [/^batches\/([^/]+)$/, BatchView, "batches"],
  [/^start$/, StartView, "start"],
  [/^queue$/, QueueView, "queue"],
  [/^jobs$/, JobsView, "jobs"],
  [/^jobs\/([^/]+)$/, JobView, "jobs"],
  [/^health$/, HealthView, "health"],
];
/** Seconds without events after which a connection counts as dead, if an engine was heard on it: engines beat every few seconds. */
const SILENT = 60;
/** Seconds within which an engine that runs is heard on a new connection. */
const FIRST_BEAT = 12;
const MENU = [["batches", "Batches"], ["start", "Start"], ["queue", "Queue"], ["jobs", "Jobs"], ["health", "Health"]];

export class App {
  constructor(body, api) {
    Object.assign(this, { body, api, view: null, stream: null, lost: null });
    /** The last sign of life of each engine, by this machine's clock. */
    this.beats = new Beats();
    this.told = el("span", { role: "status" }); // changes seldom, and is read aloud
    this.age = el("span");
    this.status = el("section", { class: "status", "aria-label": "Connection" }, this.told, " ", this.age);
    this.main = el("main", { id: "main", tabindex: -1 });
    window.addEventListener("hashchange", () => {
      this.route();
      if (this.view) this.main.focus();
    });
    // The only timer: it updates ages on the page, and asks the API nothing.
    setInterval(() => this.tellAge(), 1000);
  }

  // -- login ----------------------------------------------------------------------------------------------------------

  /** @param {string} user whose login has ended */
  askLogin(reason = "", user = "") {
    this.view?.close();
    this.view = null;
    this.stream?.close();
    this.stream = null;
    forget();
    replace(this.body, messages(), loginForm(this.api, reason, user, (session) => {
      keep(session);
      this.begin();
    }));
    document.title = "Log in – Salt jobs";
    this.body.querySelector(user ? "#password" : "input")?.focus();
  }

  /** The API says that the login has ended. */
  expire() {
    if (this.api.session) {
      const { user } = this.api.session;
      this.api.session = null;
      this.askLogin("Your login has ended. Log in again to go on.", user);
    }
  }

  async logOut() {
    this.stream?.close();
    await this.api.logout();
    this.askLogin();
  }

  begin() {
    const { user, eauth } = this.api.session;
    this.links = MENU.map(([name, text]) => el("a", { href: `#/${name}` }, text));
    this.neighbour = el("a", { href: new URL(this.api.base).pathname, class: "neighbour" }, "SaltGUI");
    this.neighbour.hidden = true;
    replace(this.body,
      el("a", { href: "#main", class: "skip", onclick: (event) => { event.preventDefault(); this.main.focus(); } }, "Skip to the content"),
      el("header", {},
        el("p", { class: "brand" }, "Salt jobs"),
        el("nav", { "aria-label": "Views" }, this.links, this.neighbour),
        el("p", { class: "who" }, `${user} (${eauth}) `, el("button", { type: "button", class: "plain", onclick: () => this.logOut() }, "Log out"))),
      this.status, messages(), this.main);
    this.lost = null;
    this.stream = new Stream(this.api, {
      wants: (tag) => wants(tag, this.view ?? {}),
      take: (tag, data) => this.hear(meaning(tag, data)),
      opened: () => this.opened(),
      lost: (reason) => this.wasLost(reason),
      loggedOut: () => this.expire(),
    });
    this.findNeighbour();
    this.route();
  }

  async findNeighbour() {
    // SaltGUI answers at salt-api's own address if a page is asked for.
    const options = { headers: { Accept: "text/html" }, credentials: "omit" };
    const text = await fetch(this.api.base, options).then((answer) => answer.text()).catch(() => "");
    this.neighbour.hidden = !/<title>[^<]*SaltGUI/i.test(text);
  }

  // -- events ---------------------------------------------------------------------------------------------------------

  hear(event) {
    if (!event) return;
    if (event.kind === "beat") {
      this.beats.heard(event.engine, Date.now() / 1000);
      this.stream.alive = true;
    }
    if (this.view?.hear(event)) this.draw();
  }

  /** For how many seconds an engine has been silent, if that is too long; 0 if it has answered, or if that is not known. */
  silent(engine) {
    return this.#listens() ? this.beats.silent(engine, Date.now() / 1000, this.stream.heard) : 0;
  }

  /** Take from a runner for how many seconds the engine of batches has shown no sign of life. */
  toldSilent(seconds) {
    this.beats.told("batch_manager", seconds, Date.now() / 1000);
  }

  /** Whether a running engine would have been heard by now on this connection. */
  #listens() {
    return Boolean(this.stream?.open) && Date.now() / 1000 - this.openedAt > FIRST_BEAT;
  }

  /** The stream is open (again): read once what happened before. */
  opened() {
    const again = this.lost !== null;
    this.lost = null;
    this.openedAt = Date.now() / 1000;
    this.tellAge();
    if (again || !this.view?.started) this.load();
    else if (this.stream.busy) this.view.reader?.want(); // of what happened meanwhile
  }

  wasLost(reason) {
    if (this.lost === null) this.lost = { since: Date.now() / 1000, reason };
    this.tellAge();
    // The view is read even if there are no events.
    if (this.view && !this.view.started) this.load();
  }

  tellAge() {
    if (!this.stream) return;
    const now = Date.now() / 1000;
    set(this.status, "data-state", this.lost ? "lost" : this.stream.open || this.stream.busy ? "live" : "waiting");
    if (this.lost) {
      const of = this.view?.readAt ? `This page shows the state of ${moment(Math.max(this.view.readAt, this.lost.since))}, ${ago(Math.max(this.view.readAt, this.lost.since), now)}.` : "Nothing has been read.";
      say(this.told, `No connection: ${this.lost.reason}.`);
      say(this.age, `${of} It is tried again.`);
    } else if (this.stream.busy) {
      say(this.told, "Much happens:");
      say(this.age, "this page is read every few seconds");
    } else if (!this.stream.open) {
      say(this.told, "Connecting…");
      say(this.age, "");
    } else {
      if (this.stream.alive && now - this.stream.heard > SILENT) this.stream.again("nothing has come for a minute, though an engine ran");
      say(this.told, "Live:");
      const silent = this.#listens() ? this.beats.allSilent(now, this.stream.heard) : [];
      if (silent.length) set(this.status, "data-state", "silent");
      say(this.age, [`last event ${ago(this.stream.heard, now)}`, ...silent.map(([engine, seconds]) => `the ${engine} engine has not answered for ${duration(seconds)}`)].join("; "));
    }
    this.view?.tick?.();
  }

  // -- views ----------------------------------------------------------------------------------------------------------

  route() {
    if (!this.api.session) return;
    const [path, asked = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s); // decoded below
    const [, View, name, found] = ROUTES.map(([pattern, ...rest]) => [pattern, ...rest, pattern.exec(path)]).find((row) => row[3])
      || [null, BatchesView, "batches", []];
    this.view?.close();
    this.view = new View(this, found[1] === undefined ? "" : decode(found[1]), asked);
    this.links.forEach((link, index) => set(link, "aria-current", MENU[index][0] === name ? "page" : null));
    this.heading = el("h1");
    replace(this.main, this.heading, this.view.node);
    this.show();
    // Follow events first, then read: nothing that happens meanwhile is missed.
    if (this.stream.open || this.stream.busy || this.lost) this.load();
  }

  /** Show the state of the view. */
  show() {
    this.view.draw();
    say(this.heading, this.view.title);
    document.title = `${this.view.title} – Salt jobs`;
  }

  async load() {
    const { view } = this;
    if (!view) return;
    view.started = true;
    await view.load();
    if (view === this.view) this.draw();
  }

  /** Draw soon: at most once a frame, however many events there are. */
  draw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      if (this.view) this.show();
    });
  }

  // -- calls ----------------------------------------------------------------------------------------------------------

  /**
   * Call a runner to read for a view. An error is returned, for the view to show.
   * @returns {Promise<{value: any, error: Error|null}>}
   */
  async read(fun, kwarg) {
    try {
      return { value: await this.api.call(fun, kwarg), error: null };
    } catch (error) {
      if (error instanceof LoggedOut) this.expire();
      return { value: null, error };
    }
  }

  /**
   * Do what the user has asked for, and say how it went.
   * @param {(value) => string} done returns the message about what has been done
   * @returns {Promise<any>} what the runner returned; undefined if it failed
   */
  async act(fun, kwarg, done) {
    const { value, error } = await this.read(fun, kwarg);
    if (error instanceof LoggedOut) return undefined;
    if (error) {
      const gone = warn(error instanceof Away ? `${fun}: ${error.message}. It is not known whether it was done.` : error.message);
      window.addEventListener("hashchange", gone, { once: true }); // another view would be covered by it
      this.draw();
      return undefined;
    }
    tell(done(value));
    return value;
  }

  /** Whether a button for a function looks forbidden: the API has denied the function, or the access list lacks it. */
  mayNot(fun) {
    return this.api.denied.has(fun) || foretold(this.api.session?.perms, fun) === false;
  }

  isDenied(error) {
    return error instanceof Denied;
  }
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Start the page. */
export async function start(body) {
  replace(body, el("p", { class: "status" }, "Looking for salt-api…"));
  let api;
  try {
    api = new Api(await findApi());
  } catch (error) {
    replace(body, el("main", { class: "login" }, el("h1", {}, "Salt jobs"), el("p", { role: "alert" }, `${error.message}.`),
      el("button", { type: "button", onclick: () => start(body) }, "Try again")));
    return;
  }
  const app = new App(body, api);
  api.session = kept();
  if (api.session) app.begin();
  else app.askLogin();
}
