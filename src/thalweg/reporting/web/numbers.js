/** Every number at t: one line per curve. */
function showNumbers() {
  const rows = state.curves.map((curve) => {
    const place = placeOf(curve.t, t());
    return { curve, place, sign: place && !place.measured ? "≈ " : "", at: placeInPlane(curve) };
  });
  const columns = numberColumns();
  const heads = columns.map((column) => make("th", { scope: "col", class: column.words ? "words" : "" }, column.title));
  const body = rows.map((row) => lineOf(columns, row));
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...body));
  find("#numbers .scroll").replaceChildren(table);
  offer(find("#numbers .files"), [[`at t ${t().toFixed(3)}`, () => csvOfTable(columns, rows)]]);
}

/**
 * Planes know their curves by name; of several with one name, the one as long as the path in the plane is meant.
 * A segment lies in the plane if it is as long as the first two points of the plane are apart.
 */
function placeInPlane(curve) {
  const straight = curve.name === "Segment" ? state.plane?.corners.slice(0, 2) : null;
  const path = state.plane?.paths[curve.name] ?? straight;
  const alone = path !== straight && state.curves.filter((other) => other.name === curve.name).length === 1;
  return path && (alone || Math.abs(lengthOf(path) / curve.length.at(-1) - 1) < 0.01) ? pointOn(path, t()) : null;
}

const lengthOf = (path) =>
  path.slice(1).reduce((sum, [x, y], i) => sum + Math.hypot(x - path[i][0], y - path[i][1]), 0);

function numberColumns() {
  const unique = (lists) => [...new Set(lists.flat())];
  const names = unique(state.curves.map((curve) => Object.keys(curve.values)));
  const quantities = (data) => unique(state.curves.map((curve) => Object.keys(curve.values[data] ?? {})));
  const length = (row) => between(row.curve.length, row.place);
  const place = ({ at, curve }) => at.map((v) => v.toFixed(2)).join(", ") + offText(state.plane, curve.name);
  return [
    { title: "curve", words: true, value: (row) => row.curve.label },
    ...names.flatMap((data) => quantities(data).map((quantity) => measuredColumn(data, quantity))),
    { title: "length so far", value: length, text: (row) => row.sign + rounded(length(row)) },
    {
      title: "in the plane",
      value: (row) => row.at?.join(" "),
      text: (row) => (row.at ? place(row) : "–"),
    },
  ];
}

function measuredColumn(data, quantity) {
  const value = (row) => between(row.curve.values[data]?.[quantity] ?? [], row.place) ?? null;
  const unit = unitOf(quantity, unitsFor(state.curves, quantity));
  return {
    title: titled(quantity, data, unit),
    value: (row) => scaled(value(row), unit),
    text: (row) => row.sign + shown(value(row), unit),
  };
}
