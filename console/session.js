// Where the login is kept: in this tab, until it is closed. Another tab, a cookie and the disk do not get it.

const KEY = "saltext-jobs-console";

export function kept() {
  try {
    const found = JSON.parse(sessionStorage.getItem(KEY));
    return found && typeof found.token === "string" ? found : null;
  } catch {
    return null;
  }
}

export function keep(session) {
  store(() => sessionStorage.setItem(KEY, JSON.stringify(session)));
}

export function forget() {
  store(() => sessionStorage.removeItem(KEY));
}

/** A browser may forbid a page to store anything: then the login lasts until the page is loaded again. */
function store(change) {
  try {
    change();
  } catch (error) {
    console.warn(`The login is not kept: ${error.message}`);
  }
}
