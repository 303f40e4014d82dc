const DASHES = ["", "7 4", "10 3 2 3", "2 3", "14 4", "6 2 2 2 2 2"];
/** Each colour with its own dash, then with the next one, as in the printed figures. */
const styleOf = (index) => ({
  stroke: `var(--series-${index % 6})`,
  "stroke-dasharray": DASHES[(index + Math.floor(index / 6)) % DASHES.length],
});

const MARKS = {
  cross: "M-4,-4L4,4M-4,4L4,-4",
  diamond: "M0,-6L6,0L0,6L-6,0Z",
  triangle: "M0,-6L6,5L-6,5Z",
  square: "M-4.5,-4.5L4.5,-4.5L4.5,4.5L-4.5,4.5Z",
  dot: "M-3.5,0A3.5,3.5 0 1,0 3.5,0A3.5,3.5 0 1,0 -3.5,0Z",
};

/**
 * Lines and marks over a common axis.
 * series: name, x, y (null leaves a gap), line (default true), mark (a key of MARKS), sizes (of its marks, 1 by
 * default), style (its colour and dash), hidden.
 * whole: label only whole numbers along x. toggle: called with the index of the legend entry that was clicked.
 * Returns the scales, so that something can be moved along the drawing.
 */
function chart(host, { series: all, x, y, textId, range, whole, toggle }) {
  const series = all.filter((item) => !item.hidden);
  const width = Math.max(260, host.clientWidth);
  const height = Math.round(Math.min(400, Math.max(230, 0.62 * width)));
  const [low, high] = padded(extent(series.flatMap((item) => item.y)) ?? [0, 1]);
  const [left, right] = range ?? extent(series.flatMap((item) => item.x)) ?? [0, 1];
  const marks = ticks(low, high, height / 60);
  const widest = Math.max(...marks.map((tick) => tickText(tick).length));
  const margin = { left: 30 + 7.2 * widest, right: 12, top: 10, bottom: 42 };
  const across = (value) => margin.left + ((value - left) / (right - left || 1)) * (width - margin.left - margin.right);
  const up = (value) => height - margin.bottom - ((value - low) / (high - low)) * (height - margin.top - margin.bottom);
  const svg = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-labelledby": textId });
  frame(svg, {
    width,
    height,
    margin,
    across,
    up,
    x,
    y,
    marks,
    places: ticks(left, right, width / 70).filter((tick) => !whole || Number.isInteger(tick)),
  });
  series.forEach((item) => svg.append(...lineParts(item, across, up)));
  host.replaceChildren(...(all.length > 1 ? [legend(all, toggle)] : []), svg);
  return { svg, across, up, margin, height };
}

function padded([low, high]) {
  const span = high - low || Math.abs(high) || 1;
  return [low >= 0 && low < 0.35 * high ? 0 : low - 0.06 * span, high + 0.06 * span];
}

function frame(svg, { width, height, margin, across, up, x, y, marks, places }) {
  const bottom = height - margin.bottom;
  for (const tick of marks) {
    svg.append(draw("line", { class: "grid", x1: margin.left, x2: width - margin.right, y1: up(tick), y2: up(tick) }));
    svg.append(draw("text", { x: margin.left - 8, y: up(tick) + 4, "text-anchor": "end" }, tickText(tick)));
  }
  for (const tick of places) {
    svg.append(draw("line", { class: "axis", x1: across(tick), x2: across(tick), y1: bottom, y2: bottom + 5 }));
    svg.append(draw("text", { x: across(tick), y: bottom + 19, "text-anchor": "middle" }, tickText(tick)));
  }
  const label = { class: "label", "text-anchor": "middle" };
  const [centre, middle] = [(margin.left + width - margin.right) / 2, (margin.top + bottom) / 2];
  svg.append(draw("line", { class: "axis", x1: margin.left, x2: width - margin.right, y1: bottom, y2: bottom }));
  svg.append(draw("text", { ...label, x: centre, y: height - 4 }, x));
  svg.append(draw("text", { ...label, transform: `translate(13 ${middle}) rotate(-90)` }, y));
}

function lineParts(item, across, up) {
  const parts = [];
  const points = item.x.map((value, i) => [value, item.y[i]]);
  if (item.line !== false)
    parts.push(draw("path", { d: trail(points, across, up), fill: "none", "stroke-width": 2, ...item.style }));
  points.forEach(([at, value], i) => {
    if (!isNumber(value) || !(item.mark || isLonely(item.y, i))) return;
    parts.push(mark(item.mark ?? "dot", across(at), up(value), item.style.stroke, item.sizes?.[i]));
  });
  return parts;
}

const isLonely = (values, i) => !isNumber(values[i - 1]) && !isNumber(values[i + 1]);

/** A path that stops where a value is missing and starts again behind it. */
function trail(points, across, up) {
  let gap = true;
  return points
    .map(([at, value]) => {
      const step = isNumber(value) ? `${gap ? "M" : "L"}${across(at).toFixed(2)},${up(value).toFixed(2)}` : "";
      gap = !step;
      return step;
    })
    .join("");
}

function mark(kind, x, y, colour, size = null) {
  const fill = kind === "cross" ? "none" : colour;
  const place = `translate(${x.toFixed(2)} ${y.toFixed(2)})`;
  return draw("path", {
    d: MARKS[kind],
    transform: size === null ? place : `${place} scale(${size.toFixed(2)})`,
    ...(size === null ? {} : { "fill-opacity": 0.5, "vector-effect": "non-scaling-stroke" }),
    fill,
    stroke: colour,
    "stroke-width": 2,
  });
}

function legend(series, toggle) {
  const items = series.map((item, index) => {
    const sample = draw("svg", { width: 30, height: 14, "aria-hidden": "true" });
    if (item.line !== false)
      sample.append(draw("line", { x1: 0, x2: 30, y1: 7, y2: 7, "stroke-width": 2, ...item.style }));
    if (item.mark) sample.append(mark(item.mark, 15, 7, item.style.stroke));
    if (!toggle) return make("li", {}, sample, item.name);
    const button = make("button", { type: "button", "aria-pressed": String(!item.hidden) }, sample, item.name);
    button.addEventListener("click", () => toggle(index));
    return make("li", {}, button);
  });
  return make("ul", { class: "legend" }, ...items);
}
