/** A table whose headings sort it; columns: title, words (text, not a number), value(row), text(row). */
function sortable(host, columns, rows) {
  const body = make("tbody");
  const heads = columns.map((column) => {
    const button = make("button", { type: "button" }, column.title);
    const head = make("th", { scope: "col", class: column.words ? "words" : "" }, button);
    button.addEventListener("click", () => sort(head, column));
    return head;
  });
  const show = (ordered) => body.replaceChildren(...ordered.map((row) => lineOf(columns, row)));
  const sort = (head, column) => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    show(ordered(rows, column.value, down ? -1 : 1));
  };
  show(rows);
  host.replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body));
  watchScroll(host);
}

/** What is not known comes last, whichever way. */
function ordered(rows, value, direction) {
  const known = rows.filter((row) => value(row) !== null);
  const compare = (a, b) => (isNumber(a) ? a - b : String(a).localeCompare(String(b)));
  known.sort((a, b) => direction * compare(value(a), value(b)));
  return [...known, ...rows.filter((row) => value(row) === null)];
}

function lineOf(columns, row) {
  const cells = columns.map((column, index) => {
    const text = column.text ? column.text(row) : String(column.value(row) ?? "–");
    const kind = { class: column.words ? "words" : "" };
    return index ? make("td", kind, text) : make("th", { scope: "row", ...kind }, text);
  });
  return make("tr", {}, ...cells);
}

const csvOfTable = (columns, rows) =>
  csvOf([columns.map((column) => column.title), ...rows.map((row) => columns.map((column) => column.value(row)))]);

const numberColumn = (title, key) => ({
  title,
  value: (row) => row[key] ?? null,
  text: (row) => shown(row[key], row.unit ?? unitOf(row.quantity)),
});
const wordColumn = (title, key) => ({ title, words: true, value: (row) => row[key] });

const ratioText = (row) => row.length_ratio?.toFixed(2) ?? (row.kind === "curve" ? "same ends" : "–");

function showSummary() {
  const several = new Set(PAGE.summary.map((row) => row.group)).size > 1;
  const columns = [
    wordColumn("scan", "label"),
    ...(several ? [wordColumn("folder", "group")] : []),
    wordColumn("data", "data"),
    { ...wordColumn("quantity", "quantity"), text: (row) => titled(row.quantity, "", row.unit) },
    ...["min", "int", "mean", "max", "barrier"].map((key) => numberColumn(key, key)),
    { title: "length ratio", value: (row) => row.length_ratio ?? null, text: ratioText },
  ];
  if (!PAGE.summary.length && !PAGE.soups.length) missing(find("#summary"), PAGE.missing.summary);
  else if (!PAGE.summary.length) find("#summary").querySelectorAll("p, .scroll").forEach((part) => (part.hidden = true));
  find("#summary").append(...PAGE.soups.map((line) => make("p", { class: "soup" }, line)));
  if (!PAGE.summary.length) return;
  sortable(find("#summary .scroll"), columns, PAGE.summary);
  offer(find("#summary .files"), [["summary", () => csvOfTable(columns, PAGE.summary)]]);
}

function showBudget() {
  const all = PAGE.comparisons.flatMap((comparison) => comparison.rows);
  if (!all.length && PAGE.papers.length) return void (find("#budget").hidden = true);
  if (!all.length) return missing(find("#budget"), PAGE.missing.comparisons);
  const several = PAGE.comparisons.length > 1;
  const multiples = [...new Set(PAGE.comparisons.flatMap((comparison) => comparison.multiples))];
  const columns = [
    wordColumn("method", "method"),
    ...(several ? [wordColumn("run", "label")] : []),
    { title: "epochs per run", value: (row) => row.epochs },
    { title: "networks per run", value: (row) => row.members },
    ...multiples.map((k) => numberColumn(`${k}B`, `${k}B`)),
    numberColumn("1B, spread", "spread"),
    wordColumn("settings", "settings"),
  ];
  const show = (score) =>
    sortable(
      find("#budget .scroll"),
      columns,
      all.filter((row) => row.quantity === score),
    );
  const scores = [...new Set(all.map((row) => row.quantity))];
  choose(
    find("#budget-scores"),
    "budget-score",
    scores.map((name) => [name, titled(name)]),
    scores[0],
    show,
  );
  show(scores[0]);
  offer(find("#budget .files"), [["budget", () => csvOfTable([wordColumn("score", "quantity"), ...columns], all)]]);
  const budgets = [...new Set(PAGE.comparisons.map((comparison) => comparison.budget))].join(" or ");
  find("#budget .title").after(
    make(
      "p",
      { class: "quiet" },
      `B is ${budgets} epochs. kB pools the first k runs; 1B is the mean over runs, with its standard deviation.`,
    ),
  );
}

const LONG = 12; // of more letters than these in a name, columns have numbers, as in the printed figures
const MANY = 15; // the pairs of more members are shown as colours alone

/** A table with a row and a column for each name; stronger colours are higher values. */
function matrix(corner, names, values, unit, highest, own = null) {
  const dense = names.length > MANY;
  const strongest = dense ? 95 : 45; // percent; with more, the number could not be read
  const cell = (value, i, j) => {
    if (i === j) return make("td", { class: "quiet" }, dense ? "" : own ? shown(own[i], unit) : "–");
    const title = `${names[i]} and ${names[j]}: ${withUnit(value, unit)}`;
    const made = make("td", { title }, dense ? "" : shown(value, unit));
    const share = Math.round(5 + (strongest * (value ?? 0)) / (highest || 1));
    made.style.background = `color-mix(in srgb, var(--series-0) ${share}%, var(--card))`;
    return made;
  };
  const long = names.some((name) => name.length > LONG);
  const columns = long ? names.map((_, j) => String(j + 1)) : names;
  const heads = [corner, ...columns].map((name) => make("th", { scope: "col" }, name));
  const rows = values.map((row, i) => {
    const cells = row.map((value, j) => cell(value, i, j));
    return make("tr", {}, make("th", { scope: "row" }, long ? `${names[i]} \u00a0${i + 1}` : names[i]), ...cells);
  });
  const [head, body] = [make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows)];
  return make("table", { class: dense ? "matrix dense" : "matrix" }, head, body);
}

const highestIn = (values) => extent(values.flat())?.[1] ?? 0;

/** The disagreement of each pair of members. */
function showMatrix(report) {
  const { pairs } = report;
  const figure = find("#disagreement");
  figure.hidden = !pairs.length;
  if (!pairs.length) return;
  const [names, highest] = [pairs.map((_, i) => String(i + 1)), highestIn(pairs)];
  figure.querySelector(".scroll").replaceChildren(matrix("member", names, pairs, "%", highest));
  watchScroll(figure.querySelector(".scroll"));
  const mean = withUnit(report.growth.at(-1).disagreement, "%");
  figure.querySelector("figcaption").textContent =
    "The share of the data, in percent, on which two members predict different classes; " +
    `${mean} on average over pairs.` +
    (names.length > MANY ? ` The strongest colour is ${withUnit(highest, "%")}; all numbers are in the CSV.` : "");
  offer(figure.querySelector(".files"), [
    [`${report.label} disagreement`, () => csvOf([["member", ...names], ...pairs.map((row, i) => [i + 1, ...row])])],
  ]);
}

/** Barriers between networks, as they are and aligned, side by side. */
function showBarriers() {
  const section = find("#barriers");
  if (!PAGE.barriers.length) return void (section.hidden = true);
  const state = { found: PAGE.barriers[0], shown: 0 };
  const show = () => {
    const { found } = state;
    const options = found.matrices.map(({ quantity, data, unit }, index) => [
      String(index),
      titled(quantity, data, unit),
    ]);
    state.shown = Math.min(state.shown, options.length - 1);
    choose(find("#barrier-quantities"), "barrier-quantity", options, String(state.shown), (index) => {
      state.shown = Number(index);
      showPanels(found, found.matrices[state.shown]);
    });
    showPanels(found, found.matrices[state.shown]);
    offer(section.querySelector(".files"), [[`${found.label} barriers`, () => found.csv]]);
  };
  select(find("#matrices"), PAGE.barriers.map((found) => found.label), (index) => {
    state.found = PAGE.barriers[index];
    show();
  });
  show();
}

function showPanels(found, { quantity, data, unit, own, panels }) {
  const highest = highestIn(Object.values(panels).flat());
  const figures = Object.entries(panels).map(([title, values]) => {
    const table = matrix("network", found.networks, values, unit, highest, own);
    const label = `Barriers, networks ${title}`;
    const host = make("div", { class: "scroll", role: "region", tabindex: 0, "aria-label": label }, table);
    watchScroll(host);
    const most = `The highest barrier is ${withUnit(highestIn(values), unit)}`;
    const more = title === "aligned" && found.alignment ? `; ${found.alignment}.` : ".";
    const heading = make("div", { class: "title" }, make("h3", {}, sentence(title)));
    return make("figure", {}, heading, host, make("figcaption", {}, most + more));
  });
  find("#barriers .pair").replaceChildren(...figures);
  find("#barriers-text").textContent =
    `How far the ${titled(quantity, data, unit)} on the straight line between two networks rises above the line that ` +
    "joins their values; on the diagonal is the value of each network. " +
    "Networks can be averaged where there is no barrier.";
}

function showRuns() {
  const host = find("#runs .runs");
  const parts = PAGE.runs.map((run) => {
    const terms = run.facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
    const summary = make("summary", {}, make("code", {}, run.label), ` · ${run.title}`);
    return make("details", {}, summary, make("dl", {}, ...terms));
  });
  if (parts.length === 1) parts[0].open = true;
  host.replaceChildren(...parts, ...PAGE.notes.map(note));
  find("#runs").hidden = !host.childElementCount && PAGE.papers.length > 0; // whose origin stands with them
  if (!PAGE.runs.length) host.append(note(PAGE.missing.runs));
}

/** Entries of the paper: our table, and whether its sentences hold. */
function showPapers() {
  find("#paper").hidden = !PAGE.papers.length;
  const parts = PAGE.papers.map(({ label, title, heads, rows, raw, claims, facts }) => {
    const held = claims.filter((claim) => claim.holds).length;
    const value = (cell) => (cell === "-" ? null : Number.isNaN(parseFloat(cell)) ? cell : parseFloat(cell));
    const columns = heads.map((title, i) => ({
      title,
      words: !i,
      value: (row) => value(row[i]),
      text: (row) => row[i],
    }));
    const table = make("div", { class: "scroll", role: "region", tabindex: 0, "aria-label": title });
    sortable(table, columns, rows);
    const lines = claims.map(({ says, holds, measured, earlier }) => {
      const before = earlier ? `; earlier: ${earlier}` : "";
      return make("li", {}, make("strong", {}, holds ? "Holds" : "Does not hold"), `: ${says} (${measured}${before}).`);
    });
    const terms = facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
    const files = make("span", { class: "files" });
    offer(files, [[label, () => csvOf(raw)]]);
    const summary = make("summary", {}, `${title} · ${held} of ${claims.length} sentences hold`);
    const list = make("ul", { class: "claims" }, ...lines);
    return make("details", {}, summary, files, table, list, make("dl", {}, ...terms));
  });
  find("#paper .runs").replaceChildren(...parts);
}
