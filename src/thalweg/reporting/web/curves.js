const state = { curves: [], planes: [], plane: null, data: null, quantity: null, ts: [], place: 0, hidden: new Set() };
const views = {};

const t = () => state.ts[state.place];

/** The values of a scan that were asked for, or the nearest that it has. */
function picked(scan) {
  const data = scan.values[state.data] ? state.data : Object.keys(scan.values)[0];
  const quantity = scan.values[data][state.quantity] ? state.quantity : Object.keys(scan.values[data])[0];
  const unit = unitOf(quantity, scan.units);
  return { data, quantity, unit, values: scan.values[data][quantity], label: titled(quantity, data, unit) };
}

function showCurves() {
  const scans = [...PAGE.curves, ...PAGE.planes];
  if (!scans.length) return missing(find("#curve"), PAGE.missing.curves);
  const groups = [...new Set(scans.map((scan) => scan.group))];
  select(
    find("#groups"),
    groups.map((group) => group || "all others"),
    (index) => enter(groups[index]),
  );
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
  choose(
    find("#data-sets"),
    "data",
    names.map((name) => [name, name]),
    state.data,
    (name) => change({ data: name }),
  );
  choose(
    find("#quantities"),
    "quantity",
    quantities.map((name) => [name, titled(name, "", unitOf(name, unitsFor(scans, name)))]),
    state.quantity,
    (name) => change({ quantity: name }),
  );
  offerOptions(
    find("#planes"),
    state.planes.map((plane) => plane.label),
  );
  startSlider();
  tellMissing();
  drawCurves();
}

/** The units of the first scan that has a quantity. */
const unitsFor = (scans, quantity) =>
  scans.find((scan) => Object.values(scan.values).some((entry) => quantity in entry))?.units ?? PAGE.units;

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
  keep(find("#profile"), state.curves.length, PAGE.missing.curves);
  keep(find("#plane"), state.planes.length, PAGE.missing.planes);
  find("#numbers").hidden = !state.curves.length;
  find("#surface").hidden = !state.planes.length;
}

/** Show a figure, or the line that says what it lacks. */
function keep(figure, there, lack) {
  figure.querySelectorAll(".missing").forEach((old) => old.remove());
  figure.querySelectorAll(":scope > :not(.title), .files").forEach((part) => (part.hidden = !there));
  if (!there) figure.append(note(lack));
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
    y: found[i].values.map((value) => scaled(value, found[i].unit)),
    style: styleOf(curve.style),
    hidden: state.hidden.has(curve),
  }));
  const captions = state.curves.map((curve, i) => (state.hidden.has(curve) ? "" : course(curve, found[i])));
  figure.querySelector("figcaption").textContent = captions.join(" ").trim() || "All curves are hidden.";
  offer(
    figure.querySelector(".files"),
    state.curves.map((curve) => [curve.label, () => curve.csv]),
  );
  const host = figure.querySelector(".drawing");
  const y = [...new Set(found.map((each) => each.label))].join(", ");
  return chart(host, { series, x: "t", y, textId: "profile-text", range: [0, 1], toggle: hide });
}

/** Hide a curve or show it again, so that the others can be seen on a scale of their own. */
function hide(index) {
  if (!state.hidden.delete(state.curves[index])) state.hidden.add(state.curves[index]);
  drawCurves();
  document.querySelectorAll("#profile .legend button")[index].focus();
}

/** What a profile shows, in words. */
function course(curve, { values, unit, label }) {
  const range = extent(values);
  if (!range) return `${capital(curve.label)}: ${label} is nowhere finite.`;
  const top = curve.t[values.indexOf(range[1])];
  const ends = [values[0], values.at(-1)].map((value) => withUnit(value, unit));
  const gaps = values.filter((value) => !isNumber(value)).length;
  return (
    `${capital(curve.label)}: ${untitled(label)} ${ends[0]} and ${ends[1]} at the ends, at most ${withUnit(range[1], unit)} ` +
    `(t = ${top.toFixed(2)}), at least ${withUnit(range[0], unit)}${gaps ? `; ${gaps} points are not finite` : ""}.`
  );
}

function drawPlane() {
  const { data, values, quantity, unit, label } = picked(state.plane);
  const grid = values.map((row) => row.map((value) => scaled(value, unit)));
  const scale = scaleOf(grid, state.plane.scales[data][quantity]);
  const file = [[state.plane.label, () => state.plane.csv]];
  offer(find("#plane .files"), file);
  offer(find("#surface .files"), file);
  find("#surface").hidden = !tellPlane(values, unit, label);
  views.surface.show(state.plane, scale, label);
  const map = planeMap(find("#plane .drawing"), state.plane, scale, label);
  const times = Number(map?.stretch.toPrecision(2));
  if (times > 1) find("#plane-text").textContent += ` The y axis is stretched ${times} x.`;
  return map;
}

/** What the map and the surface show, in words; false if there is nothing to show. */
function tellPlane(values, unit, label) {
  const numbers = values.flat();
  const range = extent(numbers);
  if (!range) {
    find("#plane-text").textContent = `${sentence(label)} is nowhere finite.`;
    return false;
  }
  const gaps = numbers.filter((value) => !isNumber(value)).length;
  const [low, high] = range.map((value) => withUnit(value, unit));
  const words = `${sentence(label)} from ${low} to ${high} on ${values[0].length} x ${values.length} points`;
  const holes = gaps ? ` ${gaps} points are not finite and left out.` : "";
  const spots = Object.keys(state.plane.paths).length
    ? "The filled spot is the curve at t."
    : "No curve is drawn in this plane.";
  const off = Object.keys(state.plane.off).length
    ? ` Faded: what does not lie in the plane, so that the ${untitled(label)} below it is not its own.`
    : "";
  find("#plane-text").textContent = `${words}. ${spanning(state.plane)} ${spots}${off}${holes}`;
  find("#surface-text").textContent =
    `${words}, seen as a surface over distances; height and colour are on the scale of the map.${holes}`;
  return true;
}

/** What a plane was made of, and how much of it was measured. */
function spanning({ corners, shares, measured }) {
  const known = measured?.flat().filter((one) => one).length;
  const part = known ? `Interpolated between ${known} of them. ` : "";
  if (shares?.length) {
    const held = Math.round(100 * (shares[0] + shares[1]));
    return `${part}The plane holds ${held} % of the variance of ${corners.length} networks.`;
  }
  const spots =
    corners.length === 1
      ? "White spot: the network around which it lies."
      : "White spots: the three points that span the plane.";
  return part + spots;
}

/** Everything that depends on t and nothing else. */
function move() {
  const input = find("#t");
  const text = `t = ${t().toFixed(3)}`;
  input.setAttribute("aria-valuetext", text);
  find("#slider output").textContent = text;
  find("#numbers .at").textContent = text;
  if (views.profile) moveProfile();
  const paths = Object.values(state.plane?.paths ?? {});
  const places = paths.map((path) => pointOn(path, t()));
  if (views.plane) moveOn(views.plane, places);
  if (state.plane) views.surface.mark(t());
  if (state.curves.length) showNumbers();
}

function moveProfile() {
  const { svg, across, margin, height } = views.profile;
  svg.querySelector(".here")?.remove();
  const x = across(t());
  svg.append(draw("line", { class: "here", x1: x, x2: x, y1: margin.top, y2: height - margin.bottom }));
  const places = state.curves.map((curve) => {
    const { values, unit } = picked(curve);
    const height = state.hidden.has(curve) ? null : scaled(between(values, placeOf(curve.t, t())), unit);
    return [t(), height, styleOf(curve.style).stroke];
  });
  moveOn(
    views.profile,
    places.filter(([, height]) => isNumber(height)),
  );
}

function moveOn({ svg, across, up }, places) {
  svg.querySelectorAll(".spot").forEach((old) => old.remove());
  svg.append(
    ...places.map(([x, y, colour]) => {
      const style = colour ? { style: `fill: ${colour}` } : {};
      return draw("circle", { class: "spot", cx: across(x), cy: up(y), r: 6, "data-x": x, "data-y": y, ...style });
    }),
  );
}
