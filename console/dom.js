// Makes the elements of the page. Data from the API becomes text or the value of a harmless attribute, never markup: nothing in
// this page sets innerHTML, and the page's policy (require-trusted-types-for) makes that an error.

// Attributes that a caller may set. The only one that could load or run something is href, for links within the page.
const ATTRIBUTES = new Set([
  "aria-controls", "aria-current", "aria-describedby", "aria-disabled", "aria-expanded", "aria-hidden", "aria-label",
  "aria-labelledby", "aria-live", "aria-pressed", "aria-valuemax", "aria-valuemin", "aria-valuenow", "aria-valuetext",
  "autocomplete", "autocapitalize", "spellcheck", "class", "colspan", "for", "id", "list", "max", "min", "name", "open", "placeholder",
  "required", "role", "rows", "scope", "size", "step", "tabindex", "title", "type", "value", "datetime", "inputmode",
  "autofocus", "d", "viewBox", "preserveAspectRatio", "points", "x", "y", "width", "height", "data-state", "data-of", "selected", "checked",
]);
const SVG = "http://www.w3.org/2000/svg";

/**
 * Return a new element.
 * @param {string} tag
 * @param {object} props attributes; `href` for a link within the page or below the server, and `on<event>` functions.
 *   An attribute that is null, undefined or false is left out.
 * @param {...(Node|string|number|null|Array)} children a string is always text, even if it looks like markup
 */
export function el(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** Return the address of a batch or job in this page; any jid works. */
export function to(view, jid) {
  return `#/${view}/${encodeURIComponent(String(jid).replace(/\p{Cs}/gu, "\ufffd"))}`;
}

/** Return the address of a search for jobs in this page. */
export function jobsOf(wanted) {
  return `#/jobs?${new URLSearchParams(wanted)}`;
}

/** Return a new SVG element. */
export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else set(node, name, value);
  }
  node.append(...flat(children));
  return node;
}

/** Set an attribute, or remove it if the value is null, undefined or false. */
export function set(node, name, value) {
  if (name === "href") {
    if (!/^(#|\/(?!\/))/.test(value)) throw new Error(`no link within the page: ${value}`);
  } else if (!ATTRIBUTES.has(name)) throw new Error(`no attribute of this page: ${name}`);
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : String(value));
}

function flat(children) {
  return children.flat(3).filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : plain(child)));
}

/** Invisible characters, and those that change the direction of writing; but not line ends and tabs. */
const UNSEEN = /(?!\r?\n|\t)[\p{C}\p{Zl}\p{Zp}]/gu;

/** Return text with invisible characters escaped, such as `\u202e`: with them one id could look like another. */
export function plain(text) {
  return String(text).replace(UNSEEN, (one) => {
    const code = one.codePointAt(0);
    const [mark, digits] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
    return `\\${mark}${code.toString(16).padStart(digits, "0")}`;
  });
}

/** Replace the children of a node. */
export function replace(node, ...children) {
  node.replaceChildren(...flat(children));
}

/** Set a node's text if it changes: a screen reader reads text aloud again whenever it is set. */
export function say(node, text) {
  const wanted = text === null || text === undefined ? "" : plain(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

/**
 * Have a parent show these items, one node each, in this order. An item keeps its node, and with it the keyboard focus.
 * @param {Node} parent
 * @param {Array} items
 * @param {(item) => string} keyOf
 * @param {(item) => {node: Node, set: (item) => void}} make
 */
export function keyed(parent, items, keyOf, make) {
  const known = parent.keyedNodes || (parent.keyedNodes = new Map());
  const wanted = new Set(items.map(keyOf));
  // Remove nodes first: a node that is moved loses the focus.
  for (const [key, row] of known) {
    if (!wanted.has(key)) {
      row.node.remove();
      known.delete(key);
    }
  }
  const placed = new Set();
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    if (placed.has(key)) continue;
    placed.add(key);
    let row = known.get(key);
    if (!row) known.set(key, (row = make(item)));
    row.set(item);
    // A node that goes further down is moved in its turn; the nodes behind it stay where they are.
    if (place && row.node === place.nextSibling) place = row.node;
    if (row.node === place) place = place.nextSibling;
    else parent.insertBefore(row.node, place);
  }
}
