/** Every number at t: one line per curve. */
function showNumbers() {
  const rows = state.curves.map((curve) => {
    const place = placeOf(curve.t, t());
    return { curve, place, sign: place && !place.measured ? "≈ " : "", at: placeInPlane(curve) };
  });
  find("#between").hidden = !rows.some((row) => row.sign);
  const columns = numberColumns();
  const heads = columns.map((column) => make("th", { scope: "col", class: column.words ? "words" : "" }, column.title));
  const body = rows.map((row) => lineOf(columns, row));
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...body));
  find("#numbers .scroll").replaceChildren(table);
  watchScroll(find("#numbers .scroll"));
  offer(find("#numbers .files"), [[`at t ${t().toFixed(3)}`, () => csvOfTable(columns, rows)]]);
}

/** What is known of a curve in the plane shown: its name there or, of a straight line between corners, its path. */
const heldInPlane = (curve) => state.plane?.holds[PAGE.curves.indexOf(curve)];

function placeInPlane(curve) {
  const held = heldInPlane(curve);
  return held ? pointOn(held.path ?? state.plane.paths[held.name], t()) : null;
}

function numberColumns() {
  const unique = (lists) => [...new Set(lists.flat())];
  const names = unique(state.curves.map((curve) => Object.keys(curve.values)));
  const quantities = (data) => unique(state.curves.map((curve) => Object.keys(curve.values[data] ?? {})));
  const length = (row) => between(row.curve.length, row.place);
  const place = ({ at, curve }) => at.map((v) => v.toFixed(2)).join(", ") + offText(state.plane, heldInPlane(curve).name);
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
