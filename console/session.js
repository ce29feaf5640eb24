// Where the login is kept: in this tab, until it is closed. Another tab, a cookie and the disk do not get it.

const KEY = "saltext-jobs-console";

/** What stands in the form for a new batch: it may hold a password that was typed as an argument, so it stays in this tab too. */
const DRAFT = "saltext-jobs-console-draft";

export function keepDraft(draft) {
  store(() => sessionStorage.setItem(DRAFT, JSON.stringify(draft)));
}

export function keptDraft() {
  try {
    return JSON.parse(sessionStorage.getItem(DRAFT));
  } catch {
    return null;
  }
}

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
  store(() => {
    sessionStorage.removeItem(KEY);
    sessionStorage.removeItem(DRAFT); // another user is not to see it
  });
}

/** A browser may forbid a page to store anything: then the login lasts until the page is loaded again. */
function store(change) {
  try {
    change();
  } catch (error) {
    console.warn(`The login is not kept: ${error.message}`);
  }
}
