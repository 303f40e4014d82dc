const redraws = [];
const state = { curves: [], planes: [], plane: null, data: null, quantity: null, ts: [], place: 0 };
const views = {};

const t = () => state.ts[state.place];

/** The values of a scan that were asked for, or the nearest that it has. */
function picked(scan) {
  const data = scan.values[state.data] ? state.data : Object.keys(scan.values)[0];
  const quantity = scan.values[data][state.quantity] ? state.quantity : Object.keys(scan.values[data])[0];
  return { data, quantity, values: scan.values[data][quantity], label: titled(quantity, data) };
}

function showCurves() {
  const scans = [...PAGE.curves, ...PAGE.planes];
  if (!scans.length) return missing(find("#curve"), PAGE.missing.curves);
  const groups = [...new Set(scans.map((scan) => scan.group))];
  select(find("#groups"), groups.map((group) => group || "all others"), (index) => enter(groups[index]));
  select(find("#planes"), [], (index) => change({ plane: state.planes[index] }));
  find("#t").addEventListener("input", (event) => slide(Number(event.target.value)));
  if (PAGE.planes.length) views.surface = new Surface(find("#surface .drawing"));
  redraws.push(drawCurves);
  enter(groups[0]);
}

/** Show the curves and planes of one folder. */
function enter(group) {
  state.curves = PAGE.curves.filter((curve) => curve.group === group);
  state.planes = PAGE.planes.filter((plane) => plane.group === group);
  state.plane = state.planes[0] ?? null;
  const scans = [...state.curves, ...state.planes];
  const names = [...new Set(scans.flatMap((scan) => Object.keys(scan.values)))];
  const quantities = [...new Set(scans.flatMap((scan) => Object.values(scan.values).flatMap(Object.keys)))];
  [state.data, state.quantity] = [names[0], quantities[0]];
  choose(find("#data-sets"), "data", names.map((name) => [name, name]), state.data, (name) => change({ data: name }));
  choose(find("#quantities"), "quantity", quantities.map((name) => [name, titled(name)]), state.quantity, (name) => change({ quantity: name }));
  offerOptions(find("#planes"), state.planes.map((plane) => plane.label));
  startSlider();
  tellMissing();
  drawCurves();
}

function change(part) {
  Object.assign(state, part);
  drawCurves();
}

function startSlider() {
  const measured = [...new Set(state.curves.flatMap((curve) => curve.t))].sort((a, b) => a - b);
  state.ts = measured.length ? measured : Array.from({ length: 121 }, (_, i) => i / 120);
  state.place = Math.floor((state.ts.length - 1) / 2);
  find("#t").max = state.ts.length - 1;
  find("#t").value = state.place;
  find("#slider").hidden = !state.curves.length && !state.planes.some((plane) => Object.keys(plane.paths).length);
}

function slide(place) {
  state.place = place;
  move();
}

function tellMissing() {
  document.querySelectorAll("#profile .missing, #plane .missing").forEach((old) => old.remove());
  if (!state.curves.length) find("#profile").append(note(PAGE.missing.curves));
  if (!state.planes.length) find("#plane").append(note(PAGE.missing.planes));
  find("#numbers").hidden = !state.curves.length;
  find("#surface").hidden = !state.planes.length;
  for (const part of document.querySelectorAll("#profile > :not(.title, .missing), #profile .files")) part.hidden = !state.curves.length;
  for (const part of document.querySelectorAll("#plane > :not(.title, .missing), #plane .files")) part.hidden = !state.planes.length;
}

function drawCurves() {
  views.profile = state.curves.length ? drawProfile() : null;
  views.plane = state.plane ? drawPlane() : null;
  move();
}

function drawProfile() {
  const figure = find("#profile");
  const found = state.curves.map(picked);
  const series = state.curves.map((curve, i) => ({
    name: found[i].label === found[0].label ? curve.label : `${curve.label} (${found[i].label})`,
    x: curve.t,
    y: found[i].values.map((value) => scaled(value, found[i].quantity)),
    style: styleOf(i),
  }));
  figure.querySelector("figcaption").textContent = state.curves.map((curve, i) => course(curve, found[i])).join(" ");
  offer(figure.querySelector(".files"), state.curves.map((curve) => [curve.label, () => curve.csv]));
  return chart(figure.querySelector(".drawing"), { series, x: "t", y: found[0].label, textId: "profile-text", range: [0, 1] });
}

/** What a profile shows, in words. */
function course(curve, { values, quantity, label }) {
  const range = extent(values);
  if (!range) return `${curve.label}: ${label} is nowhere finite.`;
  const top = curve.t[values.indexOf(range[1])];
  const ends = [values[0], values.at(-1)].map((value) => withUnit(value, quantity));
  const gaps = values.filter((value) => !isNumber(value)).length;
  return (
    `${curve.label}: ${label.replace(" (%)", "")} ${ends[0]} and ${ends[1]} at the ends, at most ${withUnit(range[1], quantity)} ` +
    `(t = ${top.toFixed(2)}), at least ${withUnit(range[0], quantity)}${gaps ? `; ${gaps} points are not finite` : ""}.`
  );
}

function drawPlane() {
  const { values, quantity, label } = picked(state.plane);
  const grid = values.map((row) => row.map((value) => scaled(value, quantity)));
  views.surface.show(state.plane, grid);
  const range = extent(values.flat());
  const gaps = values.flat().filter((value) => !isNumber(value)).length;
  const words = range
    ? `${sentence(label)} from ${withUnit(range[0], quantity)} to ${withUnit(range[1], quantity)} on ${grid[0].length} x ${grid.length} points`
    : `${sentence(label)} is nowhere finite.`;
  find("#surface").hidden = !range;
  const holes = gaps ? ` ${gaps} points are not finite and left out.` : "";
  const paths = Object.keys(state.plane.paths);
  const spots = paths.length ? " The filled spot is the curve at t." : " No curve is drawn in this plane.";
  find("#plane-text").textContent = range ? `${words}. White spots: the three networks that span the plane.${spots}${holes}` : words;
  find("#surface-text").textContent = `${words}, seen as a surface; height and colour are on the scale of the map.${holes}`;
  const file = [[state.plane.label, () => state.plane.csv]];
  offer(find("#plane .files"), file);
  offer(find("#surface .files"), file);
  return planeMap(find("#plane .drawing"), state.plane, grid, label);
}

/** Everything that depends on t and nothing else. */
function move() {
  const input = find("#t");
  const text = `t = ${t().toFixed(3)}`;
  input.setAttribute("aria-valuetext", text);
  find("#slider output").textContent = text;
  find("#numbers .at").textContent = text;
  if (views.profile) moveProfile();
  if (views.plane) moveOn(views.plane, Object.values(state.plane.paths).map((path) => pointOn(path, t())));
  if (state.plane) views.surface.mark(t());
  if (state.curves.length) showNumbers();
}

function moveProfile() {
  const { svg, across, margin, height } = views.profile;
  svg.querySelector(".here")?.remove();
  const x = across(t());
  svg.append(draw("line", { class: "here", x1: x, x2: x, y1: margin.top, y2: height - margin.bottom }));
  const heights = state.curves.map((curve) => {
    const { values, quantity } = picked(curve);
    return scaled(between(values, placeOf(curve.t, t())), quantity);
  });
  moveOn(views.profile, heights.filter(isNumber).map((value) => [t(), value]));
}

function moveOn({ svg, across, up }, places) {
  svg.querySelectorAll(".spot").forEach((old) => old.remove());
  svg.append(...places.map(([x, y]) => draw("circle", { class: "spot", cx: across(x), cy: up(y), r: 6, "data-x": x, "data-y": y })));
}

function showNumbers() {
  const rows = state.curves.map((curve) => {
    const place = placeOf(curve.t, t());
    const sign = place && !place.measured ? "≈ " : "";
    const path = state.plane?.paths[curve.name];
    return { curve, place, sign, at: path ? pointOn(path, t()) : null };
  });
  const names = [...new Set(state.curves.flatMap((curve) => Object.keys(curve.values)))];
  const measured = (data) => [...new Set(state.curves.flatMap((curve) => Object.keys(curve.values[data] ?? {})))];
  const pairs = names.flatMap((data) => measured(data).map((quantity) => [data, quantity]));
  const columns = [
    { title: "curve", words: true, value: (row) => row.curve.label },
    ...pairs.map(([data, quantity]) => {
      const value = (row) => between(row.curve.values[data]?.[quantity] ?? [], row.place) ?? null;
      return { title: titled(quantity, data), value, text: (row) => row.sign + shown(value(row), quantity) };
    }),
    { title: "length so far", value: (row) => between(row.curve.length, row.place), text: (row) => row.sign + rounded(between(row.curve.length, row.place)) },
    { title: "in the plane", value: (row) => row.at?.join(" "), text: (row) => (row.at ? row.at.map((v) => v.toFixed(2)).join(", ") : "–") },
  ];
  const head = make("tr", {}, ...columns.map((column) => make("th", { scope: "col", class: column.words ? "words" : "" }, column.title)));
  const body = rows.map((row) => lineOf(columns, row));
  find("#numbers .scroll").replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
  offer(find("#numbers .files"), [[`at t ${t().toFixed(3)}`, () => csvOfTable(columns, rows)]]);
}

function startTheme() {
  const button = find("#theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const tell = () => button.setAttribute("aria-pressed", String(isDark()));
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    tell();
  });
  system.addEventListener("change", tell);
  tell();
}

function showContents() {
  const links = [...document.querySelectorAll("main > section:not([hidden])")].map((section) =>
    make("a", { href: `#${section.id}` }, section.querySelector("h2").textContent),
  );
  find("nav").append(...links);
}

function watchWidth() {
  let width = document.body.clientWidth;
  new ResizeObserver(() => {
    if (document.body.clientWidth === width) return;
    width = document.body.clientWidth;
    redraws.forEach((redraw) => redraw());
  }).observe(document.body);
}

showSummary();
showCurves();
showEnsembles();
showBudget();
showWalks();
showRuns();
showContents();
startTheme();
watchWidth();
