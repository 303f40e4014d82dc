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

const numberColumn = (title, key) => ({ title, value: (row) => row[key] ?? null, text: (row) => shown(row[key], row.unit ?? unitOf(row.quantity)) });
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
  if (!PAGE.summary.length) return missing(find("#summary"), PAGE.missing.summary);
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

const MANY = 15; // the pairs of more members are shown as colours alone

/** The disagreement of each pair of members; stronger colours disagree more. */
function showMatrix(report) {
  const { pairs } = report;
  const figure = find("#disagreement");
  figure.hidden = !pairs.length;
  if (!pairs.length) return;
  const highest = Math.max(...pairs.flat());
  const dense = pairs.length > MANY;
  const cell = (value, i, j) => {
    if (i === j) return make("td", {}, dense ? "" : "–");
    const text = shown(value, "%");
    const made = make("td", { title: `${i + 1} and ${j + 1}: ${text} %` }, dense ? "" : text);
    const share = Math.round(5 + ((dense ? 95 : 45) * value) / (highest || 1)); // no more, or the number could not be read
    made.style.background = `color-mix(in srgb, var(--series-0) ${share}%, var(--card))`;
    return made;
  };
  const numbers = pairs.map((_, i) => make("th", { scope: "col" }, String(i + 1)));
  const head = make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "member"), ...numbers));
  const rows = pairs.map((row, i) =>
    make("tr", {}, make("th", { scope: "row" }, String(i + 1)), ...row.map((v, j) => cell(v, i, j))),
  );
  figure.querySelector(".scroll").replaceChildren(make("table", { class: dense ? "matrix dense" : "matrix" }, head, make("tbody", {}, ...rows)));
  figure.querySelector("figcaption").textContent =
    `The share of the data, in percent, on which two members predict different classes; ${withUnit(report.growth.at(-1).disagreement, "%")} on average over pairs.` +
    (dense ? ` The strongest colour is ${withUnit(highest, "%")}; all numbers are in the CSV.` : "");
  offer(figure.querySelector(".files"), [
    [
      `${report.label} disagreement`,
      () => csvOf([["member", ...pairs.map((_, i) => i + 1)], ...pairs.map((row, i) => [i + 1, ...row])]),
    ],
  ]);
}

function showRuns() {
  const host = find("#runs .runs");
  const parts = PAGE.runs.map((run) => {
    const terms = run.facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
    return make("details", {}, make("summary", {}, make("code", {}, run.label), ` · ${run.title}`), make("dl", {}, ...terms));
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
    const columns = heads.map((title, i) => ({ title, words: !i, value: (row) => value(row[i]), text: (row) => row[i] }));
    const table = make("div", { class: "scroll", role: "region", tabindex: 0, "aria-label": title });
    sortable(table, columns, rows);
    const lines = claims.map(({ says, holds, measured, earlier }) => {
      const before = earlier ? `; earlier: ${earlier}` : "";
      return make("li", {}, make("strong", {}, holds ? "Holds" : "Does not hold"), `: ${says} (${measured}${before}).`);
    });
    const terms = facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
    const files = make("span", { class: "files" });
    offer(files, [[label, () => csvOf(raw)]]);
    const told = make("summary", {}, `${title} · ${held} of ${claims.length} sentences hold`);
    return make("details", {}, told, files, table, make("ul", { class: "claims" }, ...lines), make("dl", {}, ...terms));
  });
  find("#paper .runs").replaceChildren(...parts);
}
