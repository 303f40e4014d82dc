const [LEVELS, DEPTH] = [14, 5]; // as in the printed figures
const [FLATTEST, NARROWEST] = [0.4, 90]; // height in widths and size in pixels, at least, or nothing could be seen
const VIRIDIS = [
  [253, 231, 37],
  [181, 222, 43],
  [110, 206, 88],
  [53, 183, 121],
  [31, 158, 137],
  [38, 130, 142],
  [49, 104, 142],
  [62, 73, 137],
  [72, 40, 120],
  [68, 1, 84],
];

/** A colour for a share of the scale: yellow for the lowest, dark for the highest. */
function colourAt(share) {
  const place = clamp(share) * (VIRIDIS.length - 1);
  const index = Math.min(Math.floor(place), VIRIDIS.length - 2);
  return VIRIDIS[index].map((channel, i) => Math.round(channel + (place - index) * (VIRIDIS[index + 1][i] - channel)));
}

const COLOURS = Array.from({ length: 512 }, (_, i) => colourAt(i / 511));

/**
 * A grid on the scale of its colours, from 0 to 1 and a little beyond.
 * limits: the lowest and the highest value of the scale.
 */
function scaleOf(grid, limits) {
  if (!limits) return null;
  const [low, high] = limits;
  const share = (value) => (value <= low ? -0.1 : clamp(1 + Math.log((value - low) / (high - low)) / DEPTH, -0.1, 1.1));
  const value = (part) => low + (high - low) * Math.exp(DEPTH * (part - 1));
  const shares = grid.map((row) => row.map((value) => (isNumber(value) ? share(value) : null)));
  return { shares, value, over: extent(grid.flat())[1] > high };
}

/** The value between four points of the grid, at (u, v) in grid steps; null outside it or if one is missing. */
function inside(grid, u, v) {
  if (u < 0 || v < 0 || u > grid[0].length - 1 || v > grid.length - 1) return null;
  const [i, j] = [Math.min(Math.floor(u), grid[0].length - 2), Math.min(Math.floor(v), grid.length - 2)];
  const corners = [grid[j][i], grid[j][i + 1], grid[j + 1][i], grid[j + 1][i + 1]];
  if (!corners.every(isNumber)) return null;
  const [a, b] = [u - i, v - j];
  return (1 - b) * ((1 - a) * corners[0] + a * corners[1]) + b * ((1 - a) * corners[2] + a * corners[3]);
}

function heatMap(canvas, grid) {
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  const [nx, ny] = [grid[0].length, grid.length];
  for (let row = 0; row < canvas.height; row++) {
    for (let column = 0; column < canvas.width; column++) {
      const v = ((canvas.height - row - 0.5) / canvas.height) * (ny - 1);
      const share = inside(grid, ((column + 0.5) / canvas.width) * (nx - 1), v);
      if (share !== null) paintPixel(image.data, 4 * (row * canvas.width + column), share);
    }
  }
  context.putImageData(image, 0, 0);
  context.strokeStyle = "rgba(255, 255, 255, 0.6)";
  context.lineWidth = canvas.width / 700;
  const levels = Array.from({ length: LEVELS }, (_, i) => i / (LEVELS - 1));
  context.stroke(contours(grid, levels, canvas.width, canvas.height));
}

function paintPixel(pixels, place, share) {
  [pixels[place], pixels[place + 1], pixels[place + 2]] = COLOURS[Math.round(511 * clamp(share))];
  pixels[place + 3] = 255;
}

/** Marching squares: in each square of the grid, the pieces along which its sides cross a level. */
function contours(grid, levels, width, height) {
  const path = new Path2D();
  const at = (u, v) => [(u / (grid[0].length - 1)) * width, height - (v / (grid.length - 1)) * height];
  for (let j = 0; j + 1 < grid.length; j++) {
    for (let i = 0; i + 1 < grid[0].length; i++) {
      const square = [
        [i, j],
        [i + 1, j],
        [i + 1, j + 1],
        [i, j + 1],
      ].map(([u, v]) => [u, v, grid[v][u]]);
      if (!square.every(([, , value]) => isNumber(value))) continue;
      for (const level of levels) {
        const crossed = crossings(square, level);
        for (let k = 0; k + 1 < crossed.length; k += 2) {
          path.moveTo(...at(...crossed[k]));
          path.lineTo(...at(...crossed[k + 1]));
        }
      }
    }
  }
  return path;
}

function crossings(square, level) {
  const found = [];
  square.forEach(([u, v, value], k) => {
    const [nextU, nextV, next] = square[(k + 1) % 4];
    if (value < level === next < level) return;
    const share = (level - value) / (next - value);
    found.push([u + share * (nextU - u), v + share * (nextV - v)]);
  });
  return found;
}

/** The map of a plane with what is drawn in it; returns where a place of the plane lies in the drawing. */
function planeMap(host, plane, scale, label) {
  if (!scale) {
    const reason = "its networks have diverged, or the data hold NaN.";
    return host.replaceChildren(note(`No value of this plane is finite: ${reason}`));
  }
  const width = Math.max(260, host.clientWidth);
  const [left, top, room] = [46, 8, 92];
  const [spanX, spanY] = [plane.x, plane.y].map((axis) => axis.at(-1) - axis[0]);
  const zoom = Math.min((width - left - 12) / spanX, 440 / spanY);
  const w = Math.max(spanX * zoom, NARROWEST);
  const h = Math.max(spanY * zoom, FLATTEST * w, NARROWEST);
  const across = (x) => left + ((x - plane.x[0]) / spanX) * w;
  const up = (y) => top + h - ((y - plane.y[0]) / spanY) * h;
  const sharp = Math.min(window.devicePixelRatio || 1, 2);
  const canvas = make("canvas", { width: Math.round(w * sharp), height: Math.round(h * sharp), "aria-hidden": "true" });
  Object.assign(canvas.style, { left: `${left}px`, top: `${top}px`, width: `${w}px`, height: `${h}px` });
  heatMap(canvas, scale.shares);
  const svg = draw("svg", { width, height: h + top + room, role: "img", "aria-labelledby": "plane-text" });
  axes(svg, plane, { left, top, w, h, across, up });
  colourBar(svg, scale, { left, y: top + h + 48, w, label });
  svg.append(...drawn(plane, across, up));
  host.replaceChildren(...mapLegend(plane), make("div", { class: "drawing" }, canvas, svg));
  return { svg, across, up, stretch: h / spanY / (w / spanX) };
}

function axes(svg, plane, { left, top, w, h, across, up }) {
  svg.append(draw("rect", { class: "axis", x: left, y: top, width: w, height: h }));
  for (const tick of ticks(plane.x[0], plane.x.at(-1), w / 80)) {
    svg.append(draw("line", { class: "axis", x1: across(tick), x2: across(tick), y1: top + h, y2: top + h + 5 }));
    svg.append(draw("text", { x: across(tick), y: top + h + 18, "text-anchor": "middle" }, tickText(tick)));
  }
  for (const tick of ticks(plane.y[0], plane.y.at(-1), h / 60)) {
    svg.append(draw("text", { x: left - 8, y: up(tick) + 4, "text-anchor": "end" }, tickText(tick)));
  }
  const label = { class: "label", "text-anchor": "middle" };
  svg.append(draw("text", { ...label, x: left + w / 2, y: top + h + 36 }, "distance in weight space"));
  svg.append(draw("text", { ...label, transform: `translate(11 ${top + h / 2}) rotate(-90)` }, "distance"));
}

/** The value at a part of the scale, beyond whose ends all looks alike. */
function boundText(scale, part) {
  const sign = part === 0 ? "≤ " : part === 1 && scale.over ? "≥ " : "";
  return `${sign}${Number(scale.value(part).toPrecision(3))}`;
}

function colourBar(svg, scale, { left, y, w, label }) {
  const steps = 120;
  for (let i = 0; i < steps; i++) {
    const fill = `rgb(${colourAt((i + 0.5) / steps)})`;
    svg.append(draw("rect", { x: left + (i * w) / steps, y, width: w / steps + 0.6, height: 10, fill }));
  }
  const every = w > 420 ? [0, 0.25, 0.5, 0.75, 1] : [0, 0.5, 1];
  for (const part of every) {
    const anchor = part === 0 ? "start" : part === 1 ? "end" : "middle";
    svg.append(draw("text", { x: left + part * w, y: y + 24, "text-anchor": anchor }, boundText(scale, part)));
  }
  svg.append(
    draw(
      "text",
      { class: "label", x: left + w / 2, y: y + 39, "text-anchor": "middle" },
      `${label}, logarithmic above its lowest value`,
    ),
  );
}

const MAP_DASHES = ["", "8 5", "11 4 3 4", "3 4"];
const MAP_MARKS = ["diamond", "cross", "dot", "triangle", "square"];
const FADED = { opacity: 0.5 }; // what does not lie in the plane
const SHORT_DASHES = ["3 4", "7 3", "7 3 2 3", "1 2"];
const dashed = (plane, name, i) =>
  plane.off[name]
    ? { ...FADED, "stroke-dasharray": SHORT_DASHES[i % 4] }
    : { "stroke-dasharray": MAP_DASHES[i % 4] };

/** How far something drawn in a plane leaves it, in words; nothing if it does not. */
const offText = (plane, name) =>
  plane?.off[name] ? `, up to ${Number(plane.off[name][0].toPrecision(3))} off the plane` : "";

function drawn(plane, across, up) {
  const parts = [];
  const fitted = plane.shares?.length > 0; // to many networks, which are drawn as marks, in their order
  Object.entries(plane.paths).forEach(([name, path], i) => {
    const d = trail(path, across, up);
    const style = dashed(plane, name, i);
    const halo = plane.off[name] ? style : { opacity: 0.75 };
    parts.push(draw("path", { d, fill: "none", stroke: "#fff", ...halo, "stroke-width": 4.5 }));
    parts.push(draw("path", { d, fill: "none", stroke: "#000", "stroke-width": 2, ...style }));
  });
  const r = Object.keys(plane.marks).length ? 10 : 6; // room for a mark that names it
  for (const [x, y] of fitted ? [] : plane.corners) {
    parts.push(draw("circle", { cx: across(x), cy: up(y), r, fill: "#fff", stroke: "#000", "stroke-width": 1.5 }));
  }
  Object.entries(plane.marks).forEach(([name, places], i) => {
    const group = draw("g", plane.off[name] ? { opacity: FADED.opacity } : {});
    if (fitted) group.append(draw("path", { d: trail(places, across, up), fill: "none", stroke: "#000" }));
    group.append(...places.map(([x, y]) => mark(MAP_MARKS[i % MAP_MARKS.length], across(x), up(y), "#000")));
    parts.push(group);
  });
  return parts;
}

function mapLegend(plane) {
  const ink = { stroke: "var(--ink)" };
  const style = (name, own) => ({ ...ink, ...own, ...(plane.off[name] ? FADED : {}) });
  const named = (name) => name + offText(plane, name);
  const paths = Object.keys(plane.paths).map((name, i) => ({
    name: named(name),
    style: style(name, dashed(plane, name, i)),
  }));
  const marks = Object.keys(plane.marks).map((name, i) => ({
    name: named(name),
    line: false,
    mark: MAP_MARKS[i % MAP_MARKS.length],
    style: style(name, {}),
  }));
  return paths.length + marks.length ? [legend([...paths, ...marks])] : [];
}
