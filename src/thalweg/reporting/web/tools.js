const PAGE = JSON.parse(document.getElementById("data").textContent);
const find = (selector) => document.querySelector(selector);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

/** The unit of a quantity, as a scan has it; of our own scores without one. Shares, in "%", are shown in percent. */
const unitOf = (quantity, units = PAGE.units) => units[quantity] ?? "";
const isNumber = (value) => typeof value === "number";
const scaled = (value, unit) => (isNumber(value) && unit === "%" ? 100 * value : value);

function titled(quantity, data = "", unit = unitOf(quantity)) {
  return `${data} ${quantity.replaceAll("_", " ")}${unit ? ` (${unit})` : ""}`.trim();
}

const untitled = (label) => label.replace(/ \([^()]*\)$/, "");

function rounded(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e5 || (size > 0 && size < 1e-3)) return value.toExponential(1);
  return value.toFixed(size >= 1000 ? 0 : 3);
}

function shown(value, unit = "") {
  return isNumber(value) && unit === "%" ? (100 * value).toFixed(2) : rounded(value);
}

const capital = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);

/** The name of a quantity at the beginning of a sentence. */
const sentence = (label) => untitled(capital(label));

const withUnit = (value, unit) => shown(value, unit) + (unit ? ` ${unit}` : "");

/** Round numbers that divide a span into about `count` steps. */
function ticks(low, high, count = 5) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

const tickText = (value) => (Math.abs(value) >= 1e5 ? value.toExponential(0) : String(value));

const clamp = (value, low = 0, high = 1) => Math.min(Math.max(value, low), high);

function extent(values) {
  const finite = values.filter(isNumber);
  return finite.length ? [finite.reduce((a, b) => Math.min(a, b)), finite.reduce((a, b) => Math.max(a, b))] : null;
}

/** The place of t between measured points, and whether it is one of them; null outside them. */
function placeOf(ts, t) {
  if (t < ts[0] || t > ts[ts.length - 1]) return null;
  const next = Math.max(
    1,
    ts.findIndex((value) => value >= t),
  );
  const share = (t - ts[next - 1]) / (ts[next] - ts[next - 1]);
  return { index: next - 1, share, measured: share === 0 || share === 1 };
}

function between(values, place) {
  if (!place) return null;
  const [a, b] = [values[place.index], values[place.index + 1]];
  if (place.share === 0) return a;
  if (place.share === 1) return b;
  return isNumber(a) && isNumber(b) ? a + place.share * (b - a) : null;
}

/** Paths are kept at equally spaced t from 0 to 1. */
function pointOn(path, t) {
  const index = Math.min(Math.floor(t * (path.length - 1) + 1e-9), path.length - 2);
  const share = t * (path.length - 1) - index;
  return [0, 1].map((axis) => path[index][axis] + share * (path[index + 1][axis] - path[index][axis]));
}

const cellText = (value) => {
  const plain = value === null || value === undefined ? "" : String(value);
  return /[",\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
};
const csvOf = (rows) => rows.map((row) => row.map(cellText).join(",") + "\n").join("");

function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  make("a", { href: address, download: `${name.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "")}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

/** Buttons that save what a figure shows; `files` are pairs of a name and a function that gives the text. */
function offer(host, files) {
  const buttons = files.map(([name, text]) => {
    const button = make("button", { type: "button", "aria-label": `Save ${name} as CSV` });
    button.textContent = files.length > 1 ? `CSV: ${name}` : "CSV";
    button.addEventListener("click", () => download(name, text()));
    return button;
  });
  host.replaceChildren(...buttons);
}

/** Fade the right edge of a table that goes on there, since not every browser shows a scroll bar. */
const fading = new ResizeObserver((entries) => entries.forEach(({ target }) => fade(target.closest(".scroll"))));
const fade = (host) => host?.classList.toggle("more", host.scrollLeft + host.clientWidth < host.scrollWidth - 1);

function watchScroll(host) {
  host.onscroll = () => fade(host);
  for (const part of [host, ...host.children]) fading.observe(part);
}

/** Radio buttons in a fieldset; hidden where there is nothing to choose. */
function choose(host, name, options, chosen, act) {
  host.hidden = options.length < 2;
  host.querySelectorAll("label").forEach((label) => label.remove());
  for (const [value, text] of options) {
    const input = make("input", { type: "radio", name, value });
    input.checked = value === chosen;
    input.addEventListener("change", () => act(value));
    host.append(make("label", {}, input, text));
  }
}

function select(host, options, act) {
  const list = host.querySelector("select");
  list.addEventListener("change", () => act(Number(list.value)));
  offerOptions(host, options);
}

function offerOptions(host, options) {
  host.hidden = options.length < 2;
  host.querySelector("select").replaceChildren(...options.map((text, index) => make("option", { value: index }, text)));
}

function missing(section, text) {
  section.querySelectorAll(":scope > :not(h2, .title), .title > .files").forEach((part) => (part.hidden = true));
  section.append(note(text));
}

/** A sentence in which parts between backticks are code. */
function note(text) {
  const parts = text.split("`").map((part, index) => (index % 2 ? make("code", {}, part) : part));
  return make("p", { class: "missing" }, ...parts);
}
