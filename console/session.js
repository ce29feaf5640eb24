// Keeps the login in this tab until it is closed. No other tab, no cookie and no disk gets it.

const KEY = "saltext-jobs-console";

/** The content of the form for a new batch stays in this tab too: it may hold a password that was typed as an argument. */
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
    sessionStorage.removeItem(DRAFT); // another user must not see it
  });
}

/** If the browser forbids the page to store anything, the login lasts until the page is loaded again. */
function store(change) {
  try {
    change();
  } catch (error) {
    console.warn(`The login is not kept: ${error.message}`);
  }
}
