// This page's client of salt-api: log in and out, and call runners. salt-api alone decides what a user may do.

import { parse } from "./json.js";

/** The login has ended, or there was none. */
export class LoggedOut extends Error {}
/** The API does not let this user call this function. */
export class Denied extends Error {}
/** The runner has refused the call, with the reason. */
export class Refused extends Error {}
/** The API or the master cannot be reached. */
export class Away extends Error {}

/** Options of every request. The page uses no cookies, so no other page can use its login. */
const PLAIN = { credentials: "omit", cache: "no-store", referrerPolicy: "no-referrer", redirect: "error" };

/**
 * Return the address of salt-api: of all folders above this page, the first one, from the root down, with a `login`. The page
 * may be served from any `static_path`, and salt-api below any `root_prefix`.
 */
export async function findApi(page = import.meta.url) {
  const steps = new URL(".", page).pathname.split("/").filter(Boolean);
  for (let depth = 0; depth <= steps.length; depth += 1) {
    const base = new URL(`/${steps.slice(0, depth).map((step) => `${step}/`).join("")}`, page).href;
    const answer = await ask(`${base}login`, {}).catch(() => null);
    const told = answer && answer.status < 500 && (await answer.json().catch(() => null));
    if (told && typeof told === "object" && "return" in told) return base;
  }
  throw new Away("salt-api does not answer");
}

async function ask(address, options) {
  const { headers, ...more } = options;
  try {
    return await fetch(address, { ...PLAIN, ...more, headers: { Accept: "application/json", ...headers } });
  } catch {
    throw new Away("salt-api cannot be reached");
  }
}

export class Api {
  /**
   * @param {string} base the address of salt-api, with a slash at its end
   * @param {object|null} session the result of `login`
   */
  constructor(base, session = null) {
    this.base = base;
    this.session = session;
    /** Seconds by which the server's clock is ahead of this machine's. */
    this.ahead = 0;
    /** Names of functions that the API has denied since the login. */
    this.denied = new Set();
  }

  /** The server's Unix time. */
  now() {
    return Date.now() / 1000 + this.ahead;
  }

  /** Log in; throws LoggedOut if that is refused. */
  async login(username, password, eauth) {
    const answer = await this.#post("login", { username, password, eauth });
    if (answer.status === 401) throw new LoggedOut("salt-api does not accept this user and password");
    const told = (await this.#json(answer)).return;
    const found = Array.isArray(told) ? told[0] : null;
    if (!found || typeof found.token !== "string") throw new Away("salt-api has answered the login with no token");
    const { token, user, expire, perms } = found;
    this.session = { token, user: String(user), eauth: String(found.eauth), expire: Number(expire), perms };
    this.denied.clear();
    return this.session;
  }

  /** End the session at the server, and here whatever the server answers. */
  async logout() {
    if (this.session) await this.#post("logout", {}).catch(() => null);
    this.session = null;
  }

  /**
   * Call a runner and return what it returns.
   * @throws {Denied|Refused|LoggedOut|Away}
   */
  async call(fun, kwarg = {}) {
    const answer = await this.#post("", [{ client: "runner", fun, kwarg, full_return: true }]);
    if (answer.status === 401) throw await this.#denial(fun, await reason(answer));
    const told = (await this.#json(answer)).return;
    const data = Array.isArray(told) && told[0] && typeof told[0] === "object" ? told[0].data : undefined;
    if (!data || typeof data !== "object") throw new Refused(String(Array.isArray(told) ? told[0] : told));
    if (data.success === false) throw new Refused(typeof data.return === "string" ? data.return : JSON.stringify(data.return));
    this.denied.delete(fun);
    return data.return;
  }

  /** Whether the login is still valid, which a refused call does not tell. */
  async isLoggedIn() {
    if (!this.session || !(this.session.expire > this.now())) return false;
    return (await this.#post("", [])).status !== 401;
  }

  /**
   * Open the event stream; returns the reader of its bytes. The token goes in a header, which EventSource cannot send. salt-api
   * refuses it in the address, and a cookie would be shared by all tabs and by every page of this server.
   */
  async events(signal) {
    const answer = await ask(`${this.base}events`, { headers: this.#headers(), signal });
    if (answer.status === 401) throw new LoggedOut("The login has ended");
    if (!answer.ok || !answer.body) throw new Away(`salt-api answers ${answer.status} to the event stream`);
    return answer.body.getReader();
  }

  #headers() {
    return this.session ? { "X-Auth-Token": this.session.token } : {};
  }

  async #post(path, body) {
    const headers = { "Content-Type": "application/json", ...this.#headers() };
    const answer = await ask(this.base + path, { method: "POST", headers, body: JSON.stringify(body) });
    const date = Date.parse(answer.headers.get("Date"));
    if (Number.isFinite(date)) this.ahead = date / 1000 - Math.floor(Date.now() / 1000);
    return answer;
  }

  async #json(answer) {
    if (answer.status === 503 || answer.status === 504) throw new Away("The master does not answer");
    if (!answer.ok) throw new Refused(`salt-api answers ${answer.status}: ${await reason(answer)}`);
    try {
      return parse(await answer.text());
    } catch {
      throw new Away("salt-api has answered with something that is not JSON");
    }
  }

  async #denial(fun, told) {
    if (/disabled/i.test(told)) return new Refused(`${told}: netapi_enable_clients in the master's configuration must name runner`);
    if (!(await this.isLoggedIn())) return new LoggedOut("The login has ended");
    this.denied.add(fun);
    return new Denied(`You are not permitted to call ${fun}`);
  }
}

/** Return the sentence of an error from the page in which salt-api wraps it. */
async function reason(answer) {
  const text = await answer.text().catch(() => "");
  const found = /<p>([^<]*)<\/p>/.exec(text);
  return found ? found[1].replace(/&(#39|quot|amp|lt|gt);/g, (whole) => ENTITIES[whole]).trim() : "";
}

const ENTITIES = { "&#39;": "'", "&quot;": '"', "&amp;": "&", "&lt;": "<", "&gt;": ">" };

/**
 * Tell whether the access list of the login permits a runner: `true`, `false`, or `null` if there is no list. It is a hint for
 * the look of a button, and decides nothing; see `salt.utils.minions.CkMinions.spec_check`.
 */
export function foretold(perms, fun) {
  if (!Array.isArray(perms) || !perms.length) return null;
  const [module, name] = fun.split(".");
  return perms.some((item) => {
    if (typeof item === "string") return ["@runner", "@runners", `@${module}`].includes(item);
    if (!item || typeof item !== "object") return false;
    const [key] = Object.keys(item);
    const allowed = [item[key]].flat();
    const wanted = key === "@runner" || key === "@runners" ? fun : key === `@${module}` ? name : null;
    return wanted !== null && allowed.some((one) => matches(typeof one === "string" ? one : Object.keys(one || {})[0], wanted));
  });
}

function matches(pattern, text) {
  try {
    return new RegExp(`^(?:${pattern})`).test(text); // Salt ignores the end too (re.match)
  } catch {
    return false;
  }
}
